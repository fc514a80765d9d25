"""A folder of sentence-transformers with the shape of ModernBERT-base and random weights, for bench/peers/peers.ts.

    python modernbert_base.py DIR TOKENIZER_JSON

22 layers of 768, 12 heads, GeGLU of 1,152, every third layer over the whole row and the others over 128 tokens, 50,368
rows of words, mean pooling. The tokenizer is any byte BPE with at most so many pieces, such as the small one of
libs/models/fixtures/made/tokenizers/modernbert.json; its special tokens are taken by their names.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers

folder, tokenizer = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
words = {token["content"]: token["id"] for token in json.loads(tokenizer.read_text())["added_tokens"]}
first, last, padding = words["[CLS]"], words["[SEP]"], words["[PAD]"]
torch.manual_seed(1)
config = transformers.ModernBertConfig(
    bos_token_id=first, cls_token_id=first, eos_token_id=last, sep_token_id=last, pad_token_id=padding
)
folder.mkdir(parents=True)
transformers.ModernBertModel(config).save_pretrained(folder)
shutil.copy(tokenizer, folder / "tokenizer.json")
modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
files = {
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    },
    "sentence_bert_config.json": {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
    "modules.json": [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True},
}
(folder / "1_Pooling").mkdir()
for name, content in files.items():
    (folder / name).write_text(json.dumps(content, indent=2) + "\n")
