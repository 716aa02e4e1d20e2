"""The page in the browser: the core as WebAssembly, and what is built around it."""
