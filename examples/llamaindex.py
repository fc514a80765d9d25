"""LlamaIndex with its defaults: documents into its index in memory, and the nodes that are most like a question.

    pip install llama-index-core llama-index-embeddings-openai-like && python examples/llamaindex.py

Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.
"""

import os

from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

embedding = OpenAILikeEmbedding(
    model_name=os.environ.get("SHOAL_MODEL", "minilm"),
    api_base=os.environ.get("SHOAL_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ.get("SHOAL_API_KEY", "none"),
)
texts = ["The ship left the harbour at dawn.", "Invoices are due within thirty days."]
index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=embedding)
for node in index.as_retriever(similarity_top_k=2).retrieve("when do I have to pay?"):
    print(f"{node.score:.3f} {node.text}")
