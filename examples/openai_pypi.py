"""OpenAI's client for Python, unchanged, with Shoal behind it.

    pip install openai && python examples/openai_pypi.py

Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SHOAL_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ.get("SHOAL_API_KEY", "none"),
)

for model in client.models.list():
    print(f"served: {model.id}")
answer = client.embeddings.create(
    model=os.environ.get("SHOAL_MODEL", "minilm"),
    input=["The ship left the harbour at dawn.", "Invoices are due within thirty days."],
)
for one in answer.data:
    print(f"{one.index}: {len(one.embedding)} dimensions, {[round(value, 4) for value in one.embedding[:4]]} …")
print(f"{answer.usage.total_tokens} tokens")
