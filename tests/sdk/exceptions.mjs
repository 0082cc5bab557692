// Which exception an official SDK throws in each of several conditions, a line of JSON for each.
//
// usage: exceptions.mjs CLIENT URL < what exceptions.py reads

import { asked, CLIENTS } from "./clients.mjs";

const [name, url] = process.argv.slice(2);
for (const { condition, key, model, text } of await asked()) {
  let raised = "nothing";
  let words = "";
  try {
    await CLIENTS[name](url, key).embed(model, [text]);
  } catch (error) {
    raised = error.constructor.name;
    words = error.message;
  }
  console.log(JSON.stringify({ condition, raised, words }));
}
