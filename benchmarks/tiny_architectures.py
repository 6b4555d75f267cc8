"""A tiny configuration of every causal architecture that transformers knows: two layers or so, narrow, 320 words."""

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WORDS, WINDOW, LENGTH = 320, 16, 160

# value -> how configurations call what gets it
_VALUES = {
    WORDS: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size d_model n_embd dim n_embed emb_dim word_embed_proj_dim embedding_size lru_width conv_dim "
    "attention_hidden_size mamba_d_ssm block_dim",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size d_inner decoder_ffn_dim encoder_ffn_dim mlp_hidden_size "
    "feed_forward_size intermediate_size_mlp dense_intermediate_size prefix_dense_intermediate_size block_ff_dim",
    32: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_hidden_size "
    "moe_shared_expert_intermediate_size",
    LENGTH: "max_position_embeddings n_positions max_seq_len n_ctx seq_length max_sequence_length max_target_positions "
    "context_length",
    WINDOW: "sliding_window window_size attention_window_size local_attention attention_chunk_size index_topk "
    "sliding_window_size head_dim attention_head_dim d_kv swa_head_dim swa_v_head_dim v_head_dim global_head_dim "
    "q_lora_rank kv_lora_rank qk_head_dim o_lora_rank index_head_dim mamba_d_head mamba_head_dim linear_key_head_dim "
    "linear_value_head_dim query_pre_attn_scalar",
    8: "rotary_dim qk_rope_head_dim qk_nope_head_dim mamba_d_state state_size ssm_state_size chunk_size "
    "mamba_chunk_size hidden_size_per_layer_input laurel_rank mamba_num_heads",
    4: "num_hidden_layers n_layer n_layers num_layers layers num_attention_heads n_head n_heads num_heads "
    "decoder_attention_heads encoder_attention_heads swa_num_attention_heads num_experts num_local_experts "
    "n_routed_experts moe_num_experts time_step_rank mamba_n_heads index_block_size mamba_dt_rank "
    "linear_num_value_heads",
    3: "index_topk_blocks",
    2: "decoder_layers encoder_layers num_key_value_heads num_kv_heads swa_num_key_value_heads "
    "num_global_key_value_heads num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k top_k_experts "
    "zero_expert_num num_zero_experts index_n_heads expand mamba_expand n_mamba_heads linear_num_key_heads",
    1: "n_shared_experts num_shared_experts n_group topk_group first_k_dense_replace index_local_blocks "
    "mamba_n_groups n_groups mamba_ngroups num_kv_shared_layers n_codebooks",
    0.5: "qk_dim_factor",
    0.0: "hidden_dropout attention_dropout dropout activation_dropout resid_pdrop embd_pdrop attn_pdrop "
    "hidden_dropout_prob attention_probs_dropout_prob residual_dropout embedding_dropout resid_dropout",
}
SHRUNK = {name: value for value, names in _VALUES.items() for name in names.split()}
SHRUNK |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "is_decoder": True}
# architectures whose values hang together in their own way
OWN = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
}
_PER_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "attn_type_list", "hybrid_override_pattern")
_PER_LAYER += ("block_types", "layers_types")


def kinds() -> list[str]:
    """Every model type that transformers loads as a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(kind: str) -> transformers.PretrainedConfig:
    """The architecture's own configuration with small values; what it derives from them it derives again."""
    made, own = transformers.CONFIG_MAPPING[kind](), OWN.get(kind, {})
    given = made.to_dict()
    known = {name: value for name, value in SHRUNK.items() if given.get(name) is not None}
    known |= {name: SHRUNK[name] for name in ("vocab_size", "pad_token_id", "is_decoder") if name in given}
    try:
        config = type(made)(**known, **{name: value for name, value in own.items() if name not in known})
        if len(getattr(config, "layer_types", None) or range(config.num_hidden_layers)) != config.num_hidden_layers:
            config = made
    except Exception:  # whatever checks of its own it has: its defaults, with the values put in afterwards
        config = made
    _put_in(config, SHRUNK | own)
    return config


def _put_in(config: transformers.PretrainedConfig, values: dict, depth: int = 0) -> None:
    for name, value in values.items():
        if getattr(config, name, None) is not None or (name == "pad_token_id" and hasattr(config, name)):
            _set(config, name, value)
    layers = getattr(config, "num_hidden_layers", None) or 4
    for name in _PER_LAYER:
        old = getattr(config, name, None)
        if isinstance(old, list | tuple) and len(old) > layers:
            _set(config, name, (list(dict.fromkeys(old)) * layers)[:layers])
    for part in list(vars(config).values()):
        if isinstance(part, transformers.PretrainedConfig) and depth < 2:
            _put_in(part, values, depth + 1)


def _set(config: transformers.PretrainedConfig, name: str, value: object) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # derived from others, or checked against them
        return
