"""Official SDKs, unchanged but for base URL and key, behind one small face.

Each client embeds; some also rank. `embed` gives a list of vectors, `rank` a list of (index, score). What an SDK does by
itself (encodings, splitting, error classes) is left as it is; only its own retries are off, so that the first answer is
the one that is seen.
"""

TIMEOUT_S = 60


class OpenAi:
    def __init__(self, url, key):
        import openai

        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_S)

    def embed(self, model, texts):
        return [item.embedding for item in self.client.embeddings.create(model=model, input=texts).data]


class Azure(OpenAi):
    def __init__(self, url, key):
        import openai

        self.client = openai.AzureOpenAI(
            azure_endpoint=url, api_key=key, api_version="2024-10-21", max_retries=0, timeout=TIMEOUT_S
        )


class LangChain:
    def __init__(self, url, key):
        self.url, self.key = url, key

    def embed(self, model, texts):
        from langchain_openai import OpenAIEmbeddings

        client = OpenAIEmbeddings(
            model=model,
            base_url=f"{self.url}/v1",
            api_key=self.key,
            max_retries=0,
            timeout=TIMEOUT_S,
            # Else it sends ids of OpenAI's tokenizer, which no other model understands.
            check_embedding_ctx_length=False,
        )
        return client.embed_documents(texts)


class LlamaIndex:
    def __init__(self, url, key):
        self.url, self.key = url, key

    def embed(self, model, texts):
        from llama_index.embeddings.openai import OpenAIEmbedding

        client = OpenAIEmbedding(
            model_name=model, api_base=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=TIMEOUT_S
        )
        return client.get_text_embedding_batch(texts)


class CohereV1:
    once = {"max_retries": 0}

    def __init__(self, url, key):
        import cohere

        self.client = cohere.Client(base_url=f"{url}/cohere", api_key=key, timeout=TIMEOUT_S)

    def embed(self, model, texts):
        return self.client.embed(model=model, texts=texts, request_options=self.once).embeddings

    def rank(self, model, query, documents, top):
        answer = self.client.rerank(
            model=model,
            query=query,
            documents=documents,
            top_n=top,
            return_documents=True,
            request_options=self.once,
        )
        for result in answer.results:
            assert result.document.text == documents[result.index], result
        return [(result.index, result.relevance_score) for result in answer.results]


class CohereV1Typed(CohereV1):
    def embed(self, model, texts):
        answer = self.client.embed(
            model=model,
            texts=texts,
            input_type="search_document",
            embedding_types=["float"],
            request_options=self.once,
        )
        return answer.embeddings.float_


class CohereV2(CohereV1Typed):
    def __init__(self, url, key):
        import cohere

        self.client = cohere.ClientV2(base_url=f"{url}/cohere", api_key=key, timeout=TIMEOUT_S)

    def rank(self, model, query, documents, top):
        answer = self.client.rerank(
            model=model, query=query, documents=documents, top_n=top, request_options=self.once
        )
        return [(result.index, result.relevance_score) for result in answer.results]


class Voyage:
    def __init__(self, url, key):
        import voyageai

        self.client = voyageai.Client(base_url=f"{url}/voyage/v1", api_key=key, timeout=TIMEOUT_S)

    def embed(self, model, texts):
        return self.client.embed(texts, model=model).embeddings

    def rank(self, model, query, documents, top):
        answer = self.client.rerank(query, documents, model=model, top_k=top)
        return [(result.index, result.relevance_score) for result in answer.results]


class VoyageTyped(Voyage):
    def embed(self, model, texts):
        return self.client.embed(texts, model=model, input_type="document").embeddings


class HuggingFace:
    def __init__(self, url, key):
        self.url, self.key = url, key

    def embed(self, model, texts):
        from huggingface_hub import InferenceClient

        client = InferenceClient(base_url=f"{self.url}/tei/{model}", api_key=self.key, timeout=TIMEOUT_S)
        return client.feature_extraction(texts).tolist()


class Ollama:
    def __init__(self, url, key):
        import ollama

        headers = {"Authorization": f"Bearer {key}"}
        self.client = ollama.Client(host=f"{url}/ollama", headers=headers, timeout=TIMEOUT_S)

    def embed(self, model, texts):
        return [list(vector) for vector in self.client.embed(model=model, input=texts).embeddings]


class OllamaOlder(Ollama):
    """Its older route: one text a call."""

    def embed(self, model, texts):
        return [list(self.client.embeddings(model=model, prompt=text).embedding) for text in texts]


CLIENTS = {
    "openai": OpenAi,
    "azure": Azure,
    "langchain": LangChain,
    "llama-index": LlamaIndex,
    "cohere-v1": CohereV1,
    "cohere-v1-typed": CohereV1Typed,
    "cohere-v2": CohereV2,
    "voyage": Voyage,
    "voyage-typed": VoyageTyped,
    "hugging-face": HuggingFace,
    "ollama": Ollama,
    "ollama-older-route": OllamaOlder,
}
