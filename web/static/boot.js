import init from "./page.js";
init({ module_or_path: "page_bg.wasm" });
