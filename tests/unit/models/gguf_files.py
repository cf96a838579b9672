"""A small Llama written as a GGUF file, the way llama.cpp's converter lays it out."""

from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, LAYERS, WIDTH, CONTEXT = 2, 2, 32, 64
BLOCK_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def vocabulary() -> list[str]:
    return ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll"]


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    """Write the model in float32 with a byte-level tokenizer of two merges."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] + [1] * (len(vocabulary()) - 1))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_gguf_name(name), _gguf_weight(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{BLOCK_NAMES[rest.removesuffix('.weight')]}.weight"


def _gguf_weight(name: str, weight: Tensor) -> np.ndarray:
    """Return the weight; rows of q and k interleave the two halves of every head."""
    array = weight.numpy()
    if "q_proj" in name or "k_proj" in name:
        halves = array.reshape(HEADS, 2, -1, array.shape[1])
        array = halves.swapaxes(1, 2).reshape(array.shape)
    return np.ascontiguousarray(array)
