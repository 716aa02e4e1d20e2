import js from "@eslint/js";

const browser = ["document", "location", "history", "navigator", "self", "window", "performance"];
const more = [
  "atob",
  "URL",
  "Blob",
  "Worker",
  "WebAssembly",
  "Image",
  "OffscreenCanvas",
  "XMLSerializer",
];
const loops = ["requestAnimationFrame", "setTimeout", "clearTimeout"];
const others = ["addEventListener", "getComputedStyle", "innerHeight", "URLSearchParams"];
const streams = ["DecompressionStream", "Response"];
const node = ["process", "console"];
const names = [...browser, ...more, ...loops, ...others, ...streams, ...node];

export default [
  js.configs.recommended,
  { languageOptions: { globals: Object.fromEntries(names.map((name) => [name, "readonly"])) } },
];
