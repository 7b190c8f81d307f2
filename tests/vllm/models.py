"""Models made on the spot: a configuration, a tokenizer, no weights (``--load-format dummy``) and no network.

    python tests/vllm/models.py FOLDER    # the Llama

Invariant: the same call writes the same bytes, and vLLM fills dummy weights from its seed, so the same greedy request
gives the same tokens on any server of the same options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512

_CORPUS = (
    "You are a helpful assistant. Answer briefly, and say so when you do not know.",
    "The quick brown fox jumps over the lazy dog while the ledger counts every block it held.",
    "user: what is the price of a block second? assistant: the price of the GPU over its number of blocks.",
)
_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,  # of 32 each: the CPU's attention has no smaller heads
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


def llama(folder: Path) -> Path:
    """A Llama of two layers: one KV group."""
    return _written(
        folder,
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        },
    )


def sliding_window(folder: Path, window: int = 64) -> Path:
    """A Gemma 3 whose layers attend to the last ``window`` tokens and to all of them in turn: two KV groups."""
    return _written(
        folder,
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": window,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10_000.0,
            "query_pre_attn_scalar": 32,
            "hidden_activation": "gelu_pytorch_tanh",
            "pad_token_id": 0,
            "tie_word_embeddings": True,
        },
    )


def _written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_SHAPE | config, indent=1))
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "chat_template": _CHAT,
            }
        )
    )
    return folder


def _tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS, trainer)
    return made


if __name__ == "__main__":
    print(llama(Path(sys.argv[1])))
