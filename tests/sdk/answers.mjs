// What an official SDK gets for texts and documents at each of several addresses, a line of JSON for each.
//
// usage: answers.mjs CLIENT KEY URL… < what answers.py reads

import { asked, CLIENTS } from "./clients.mjs";

const [name, key, ...urls] = process.argv.slice(2);
const work = await asked();
for (const url of urls) {
  const client = CLIENTS[name](url, key);
  const got = {};
  if (work.texts) got.vectors = (await client.embed(work.model, work.texts)).map((vector) => Array.from(vector));
  if (work.query) got.ranking = await client.rank(work.ranker, work.query, work.documents, work.top);
  console.log(JSON.stringify(got));
}
