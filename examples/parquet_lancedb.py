"""A Parquet file of `shoal embed` into a table of LanceDB, and the rows nearest to one of them.

    shoal embed rows.jsonl --with-text -o rows.parquet
    pip install lancedb pyarrow && python examples/parquet_lancedb.py rows.parquet r0

Started again, also after it died half-way, it has each row once: a row takes the place of the one with its id.
"""

import sys

import lancedb
import pyarrow as pa
from pyarrow import parquet

path, asked = sys.argv[1], sys.argv[2]
file = parquet.ParquetFile(path)
dims = len(file.read_row_group(0, ["embedding"])["embedding"][0])
vectors = pa.list_(pa.float32(), dims)  # of a fixed size: what LanceDB takes for vectors

db = lancedb.connect("lancedb")
schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("embedding", vectors)])
table = db.create_table("docs", schema=schema, exist_ok=True)
for group in range(file.num_row_groups):  # a row group at a time, whatever the size of the file
    rows = file.read_row_group(group).select(["id", "text", "embedding"]).cast(schema)
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

one = table.search().where(f"id = '{asked}'").limit(1).to_list()[0]
print(table.count_rows(), "rows")
for row in table.search(one["embedding"]).limit(3).to_list():
    print(f"{row['_distance']:.3f} {row['id']} {row['text']}")
