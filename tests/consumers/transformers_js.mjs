// What transformers.js makes of texts. Reads a JSON object from standard input, writes one:
//   {"tokenizers": {FOLDER: [text, …]}, "models": [{"folder": …, "dtype": …, "batches": [[text, …], …]}, …]}
//   {"tokenizers": {FOLDER: [[id, …], …]}, "models": [[vector, …], …]}
// ST_REBA_NODE names the folder in which npm installed it.
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.env.ST_REBA_NODE}/`);
const { AutoTokenizer, env, pipeline } = require("@huggingface/transformers");
env.allowRemoteModels = false;

function at(folder) {
  env.localModelPath = `${dirname(folder)}/`;
  return basename(folder);
}

const given = JSON.parse(readFileSync(0, "utf8"));
const found = { tokenizers: {}, models: [] };
for (const [folder, texts] of Object.entries(given.tokenizers)) {
  const tokenizer = await AutoTokenizer.from_pretrained(at(folder));
  found.tokenizers[folder] = texts.map((text) => tokenizer(text, { return_tensor: false, truncation: true }).input_ids);
}
for (const { folder, dtype, batches } of given.models) {
  const embed = await pipeline("feature-extraction", at(folder), { dtype });
  const vectors = [];
  for (const texts of batches) {
    vectors.push(...(await embed(texts, { pooling: "mean", normalize: true })).tolist());
  }
  found.models.push(vectors);
}
process.stdout.write(JSON.stringify(found));
