"""LangChain for Python: documents into its store in memory, and a search.

    pip install langchain-openai && python examples/langchain_python.py

Its OpenAIEmbeddings sends by default the token ids of OpenAI's own vocabulary, which no other model can read: Shoal
refuses them, and says so. check_embedding_ctx_length=False sends the texts.
Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.
"""

import os

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

options = {
    "model": os.environ.get("SHOAL_MODEL", "minilm"),
    "base_url": os.environ.get("SHOAL_URL", "http://127.0.0.1:8787") + "/v1",
    "api_key": os.environ.get("SHOAL_API_KEY", "none"),
}

try:
    OpenAIEmbeddings(**options).embed_query("when do I have to pay?")
    raise SystemExit("the defaults were not refused")
except Exception as error:
    print(f"with its defaults: {error}")

store = InMemoryVectorStore(OpenAIEmbeddings(check_embedding_ctx_length=False, **options))
store.add_texts(["The ship left the harbour at dawn.", "Invoices are due within thirty days."])
for document, score in store.similarity_search_with_score("when do I have to pay?"):
    print(f"{score:.3f} {document.page_content}")
