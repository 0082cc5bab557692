// Official SDKs for Node, unchanged but for base URL and key. Only their own retries are off, so that the first answer
// is the one that is seen.

import { createRequire } from "node:module";

// The SDKs are installed beside the folder in which this runs.
const require = createRequire(`${process.cwd()}/`);

const openai = (name) => (url, key) => {
  const { OpenAI } = require(name);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
  return {
    embed: async (model, texts) => (await client.embeddings.create({ model, input: texts })).data.map((item) => item.embedding),
  };
};

const once = { maxRetries: 0, timeoutInSeconds: 60 };

const found = (answer) => answer.results.map((result) => [result.index, result.relevanceScore]);

const cohereV1 = (name, more = {}) => (url, key) => {
  const { CohereClient } = require(name);
  const client = new CohereClient({ environment: `${url}/cohere`, token: key });
  return {
    embed: async (model, texts) => {
      const { embeddings } = await client.embed({ model, texts, ...more }, once);
      return embeddings.float ?? embeddings;
    },
    rank: async (model, query, documents, topN) => found(await client.rerank({ model, query, documents, topN }, once)),
  };
};

const typed = { inputType: "search_document", embeddingTypes: ["float"] };

const cohereV2 = (name) => (url, key) => {
  const { CohereClientV2 } = require(name);
  const client = new CohereClientV2({ environment: `${url}/cohere`, token: key });
  return {
    embed: async (model, texts) => (await client.embed({ model, texts, ...typed }, once)).embeddings.float,
    rank: async (model, query, documents, topN) => found(await client.rerank({ model, query, documents, topN }, once)),
  };
};

export const CLIENTS = {
  "openai": openai("openai"),
  "openai-older": openai("openai-older"),
  "cohere-v1": cohereV1("cohere-ai"),
  "cohere-v1-typed": cohereV1("cohere-ai", typed),
  "cohere-v2": cohereV2("cohere-ai"),
  "cohere-v1-older": cohereV1("cohere-ai-older"),
  "cohere-v1-typed-older": cohereV1("cohere-ai-older", typed),
  "cohere-v2-older": cohereV2("cohere-ai-older"),
};

export const asked = async () => {
  const pieces = [];
  for await (const piece of process.stdin) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString());
};
