// Run a WebAssembly program of WASI under Node: node wasi.mjs program.wasm calls results
import { readFile } from "node:fs/promises";
import { basename, dirname } from "node:path";
import { WASI } from "node:wasi";

const [program, calls, results] = process.argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: ["main", `/here/${basename(calls)}`, `/here/${basename(results)}`],
  preopens: { "/here": dirname(calls) },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
