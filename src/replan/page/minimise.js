export function minimise() {}
