"""Reranks through the Python clients that people have, each with its defaults.

Reads one JSON object from standard input, {"url": "http://…", "model": ..., "requests": [{"client", "query",
"documents", "model"?}]}, and writes one JSON line a request: {"scores": [...]}, in the order of the documents, or
{"error": "..."}. Nothing is set but address, model, key, how many are wanted and what the request names.
"""

import contextlib
import json
import sys


def in_order(results, count):
    scores = [None] * count
    for index, score in results:
        scores[index] = float(score)
    return scores


def cohere_client(kind):
    def ask(url, model, query, documents):
        import cohere

        client = getattr(cohere, kind)(api_key="none", base_url=url)
        answer = client.rerank(model=model, query=query, documents=documents)
        return in_order([(one.index, one.relevance_score) for one in answer.results], len(documents))

    return ask


def langchain(url, model, query, documents):
    import cohere
    from langchain_cohere import CohereRerank

    compressor = CohereRerank(client=cohere.ClientV2(api_key="none", base_url=url), model=model, top_n=len(documents))
    results = compressor.rerank(documents, query)
    return in_order([(one["index"], one["relevance_score"]) for one in results], len(documents))


def llama_index(postprocessor, query, documents):
    from llama_index.core.schema import NodeWithScore, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(at)), score=0.0) for at, text in enumerate(documents)]
    ranked = postprocessor.postprocess_nodes(nodes, query_str=query)
    return in_order([(int(one.node.node_id), one.score) for one in ranked], len(documents))


def llama_index_cohere(url, model, query, documents):
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    reranker = CohereRerank(top_n=len(documents), model=model, api_key="none", base_url=url, max_retries=1)
    return llama_index(reranker, query, documents)


def llama_index_jina(url, model, query, documents):
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    reranker = JinaRerank(top_n=len(documents), model=model, api_key="none", base_url=f"{url}/v1")
    return llama_index(reranker, query, documents)


def llama_index_tei(url, model, query, documents):
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    return llama_index(TextEmbeddingInference(top_n=len(documents), base_url=url), query, documents)


CLIENTS = {
    "cohere (PyPI), ClientV2": cohere_client("ClientV2"),
    "cohere (PyPI), Client": cohere_client("Client"),
    "LangChain, Cohere": langchain,
    "LlamaIndex, Cohere": llama_index_cohere,
    "LlamaIndex, Jina": llama_index_jina,
    "LlamaIndex, TEI": llama_index_tei,
}


def ask(url, model, request):
    try:
        with contextlib.redirect_stdout(sys.stderr):
            client = CLIENTS[request["client"]]
            scores = client(url, request.get("model", model), request["query"], request["documents"])
        return {"scores": scores}
    except Exception as error:  # what a client raises is what its user sees
        return {"error": str(error)}


def main():
    told = json.load(sys.stdin)
    for request in told["requests"]:
        print(json.dumps(ask(told["url"], told["model"], request)), flush=True)


main()
