// Run a WebAssembly program of WASI under Node: node wasi.mjs program.wasm [calls results]
// The files that it is given lie in one folder.
import { readFile } from "node:fs/promises";
import { basename, dirname } from "node:path";
import { WASI } from "node:wasi";

const [program, ...files] = process.argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: ["main", ...files.map((file) => `/here/${basename(file)}`)],
  preopens: { "/here": dirname(files[0] ?? program) },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
