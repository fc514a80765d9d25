"""LiteLLM, as a library or behind its proxy: Shoal is an address of OpenAI's form.

    pip install litellm && python examples/litellm_embedding.py

Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.
"""

import os

import litellm

answer = litellm.embedding(
    model="openai/" + os.environ.get("SHOAL_MODEL", "minilm"),
    api_base=os.environ.get("SHOAL_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ.get("SHOAL_API_KEY", "none"),
    input=["The ship left the harbour at dawn.", "Invoices are due within thirty days."],
)
for one in answer.data:
    print(f"{one['index']}: {len(one['embedding'])} dimensions, {[round(value, 4) for value in one['embedding'][:4]]} …")
