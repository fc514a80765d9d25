"""A batch through OpenAI's Python client with its defaults, from the upload to the output.

Reads one JSON object from standard input, {"url": ".../v1", "lines": [...], "endpoint": ...}, and writes one:
{"status", "counts", "output": [...], "errors": [...], "listed": whether lists have the batch and its files,
"gone": the name of the error for a file that was deleted}.
"""

import json
import sys
import time

from openai import OpenAI, NotFoundError

asked = json.load(sys.stdin)
client = OpenAI(base_url=asked["url"], api_key="none")
content = "\n".join(json.dumps(line) for line in asked["lines"]).encode()
file = client.files.create(file=("input.jsonl", content), purpose="batch")
assert client.files.content(file.id).content == content
batch = client.batches.create(
    input_file_id=file.id, endpoint=asked["endpoint"], completion_window="24h", metadata={"by": "python"}
)
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.1)
    batch = client.batches.retrieve(batch.id)


def lines_of(file_id):
    text = "" if file_id is None else client.files.content(file_id).text
    return [json.loads(line) for line in text.splitlines()]


listed = {one.id for one in client.files.list(limit=2)} >= {file.id, batch.output_file_id}
answer = {
    "status": batch.status,
    "counts": batch.request_counts.to_dict(),
    "metadata": batch.metadata,
    "output": lines_of(batch.output_file_id),
    "errors": lines_of(batch.error_file_id),
    "listed": listed and batch.id in {one.id for one in client.batches.list(limit=1)},
}
assert client.files.delete(file.id).deleted
try:
    client.files.retrieve(file.id)
except NotFoundError as error:
    answer["gone"] = type(error).__name__
print(json.dumps(answer))
