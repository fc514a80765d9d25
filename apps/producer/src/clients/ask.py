"""Embeds through the Python clients that people have, each with its defaults.

Reads one JSON object from standard input, {"url": ".../v1", "model": ..., "requests": [{"client", "texts", "dimensions"?,
"model"?}]}, and writes one JSON line a request: {"vectors": [[...]]} or {"error": {"status", "message"}}.
Nothing is set but address, model, key and what the request names; retries are off, so that a refusal is seen at once.
"""

import contextlib
import json
import sys


def openai_client(url, model, texts, dimensions):
    from openai import OpenAI

    more = {} if dimensions is None else {"dimensions": dimensions}
    answer = OpenAI(base_url=url, api_key="none", max_retries=0).embeddings.create(model=model, input=texts, **more)
    return [one.embedding for one in answer.data]


def langchain(url, model, texts, dimensions):
    from langchain_openai import OpenAIEmbeddings

    client = OpenAIEmbeddings(model=model, base_url=url, api_key="none", max_retries=0, dimensions=dimensions)
    return [client.embed_query(texts[0])] if len(texts) == 1 else client.embed_documents(texts)


def langchain_texts(url, model, texts, dimensions):
    from langchain_openai import OpenAIEmbeddings

    client = OpenAIEmbeddings(
        model=model, base_url=url, api_key="none", max_retries=0, dimensions=dimensions, check_embedding_ctx_length=False
    )
    return [client.embed_query(texts[0])] if len(texts) == 1 else client.embed_documents(texts)


def langchain_tei(url, model, texts, dimensions):
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings

    client = HuggingFaceEndpointEmbeddings(model=model, huggingfacehub_api_token="none")
    # It takes no address since 1.2; its client of TEI does.
    client.client = InferenceClient(model=url.removesuffix("/v1") + "/embed", token="none")
    return [client.embed_query(texts[0])] if len(texts) == 1 else client.embed_documents(texts)


def llama_index(url, model, texts, dimensions):
    from llama_index.embeddings.openai import OpenAIEmbedding

    client = OpenAIEmbedding(model_name=model, api_base=url, api_key="none", max_retries=0, dimensions=dimensions)
    return [client.get_query_embedding(texts[0])] if len(texts) == 1 else client.get_text_embedding_batch(texts)


def llama_index_like(url, model, texts, dimensions):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    client = OpenAILikeEmbedding(model_name=model, api_base=url, api_key="none", max_retries=0, dimensions=dimensions)
    return [client.get_query_embedding(texts[0])] if len(texts) == 1 else client.get_text_embedding_batch(texts)


def lite_llm(url, model, texts, dimensions):
    import litellm

    more = {} if dimensions is None else {"dimensions": dimensions, "allowed_openai_params": ["dimensions"]}
    answer = litellm.embedding(
        model=f"openai/{model}", api_base=url, api_key="none", input=texts, max_retries=0, num_retries=0, **more
    )
    return [one["embedding"] for one in answer.data]


CLIENTS = {
    "openai (PyPI)": openai_client,
    "LangChain (Python)": langchain,
    "LangChain (Python), texts": langchain_texts,
    "LangChain (Python), TEI": langchain_tei,
    "LlamaIndex": llama_index,
    "LlamaIndex, like": llama_index_like,
    "LiteLLM": lite_llm,
}


def ask(url, model, request):
    try:
        # LiteLLM prints advice on standard output when a request fails; the answers alone go there.
        with contextlib.redirect_stdout(sys.stderr):
            vectors = CLIENTS[request["client"]](
                url, request.get("model", model), request["texts"], request.get("dimensions")
            )
        return {"vectors": [[float(value) for value in vector] for vector in vectors]}
    except Exception as error:  # what a client raises is what its user sees
        answer = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or getattr(answer, "status_code", None)
        return {"error": {"status": status, "message": str(error)}}


def main():
    told = json.load(sys.stdin)
    for request in told["requests"]:
        print(json.dumps(ask(told["url"], told["model"], request)), flush=True)


main()
