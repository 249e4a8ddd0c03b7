//! Names of tensors: GGUF's, and those that the families use.

/// Parts of a layer that all architectures call the same.
const COMMON: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Parts that an architecture calls otherwise.
fn own(architecture: &str) -> &'static [(&'static str, &'static str)] {
    match architecture {
        "gemma2" | "gemma3" => &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        "olmo2" | "exaone4" => &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        "glm4" => &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        "phi3" => &[("ffn_up", "mlp.gate_up_proj")],
        "seed_oss" => &[("post_attention_norm", "post_attention_layernorm")],
        "starcoder2" => &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        "stablelm" => &[("attn_q_norm", "self_attn.q_layernorm"), ("attn_k_norm", "self_attn.k_layernorm")],
        _ => &[],
    }
}

/// The families' name of a tensor; `None` if there is no such name.
pub(super) fn model_name(architecture: &str, stored: &str) -> Option<String> {
    match stored {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output_norm.bias" => return Some("model.norm.bias".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, rest) = stored.strip_prefix("blk.")?.split_once('.')?;
    let number: u32 = layer.parse().ok()?;
    if number.to_string() != layer {
        return None;
    }
    let (part, kind) = rest.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let (_, part) = own(architecture).iter().chain(COMMON).find(|(stored, _)| *stored == part)?;
    Some(format!("model.layers.{number}.{part}.{kind}"))
}

/// The architectures whose q and k converters reorder, so that the halves that RoPE pairs stand interleaved.
pub(super) fn is_interleaved(architecture: &str) -> bool {
    matches!(architecture, "llama" | "smollm3" | "granite" | "minicpm")
}

/// Whether RoPE acts on what this tensor of such an architecture makes.
pub(super) fn is_rotated(architecture: &str, stored: &str) -> bool {
    let mut parts = stored.rsplit('.');
    // MiniCPM's converter leaves biases alone.
    let reordered = parts.next() != Some("bias") || architecture != "minicpm";
    stored.starts_with("blk.") && reordered && matches!(parts.next(), Some("attn_q" | "attn_k"))
}

/// Whether the rows of this tensor, of the families' name, are the gains of one head each.
pub(super) fn is_by_head(name: &str) -> bool {
    name.ends_with(".q_layernorm.weight") || name.ends_with(".k_layernorm.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_and_ends() {
        let names = [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"),
            ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
            ("blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight"),
        ];
        for (stored, name) in names {
            assert_eq!(model_name("llama", stored).as_deref(), Some(name));
        }
        for other in [
            "rope_freqs.weight",
            "blk.00.attn_q.weight",
            "blk.x.attn_q.weight",
            "blk.0.attn_q",
            "blk.0.attn_q.scale",
            "blk.0.ffn_gate_exps.weight",
            "blk..attn_q.weight",
            "blk.-1.attn_q.weight",
            "",
        ] {
            assert_eq!(model_name("llama", other), None, "{other}");
        }
        assert!(is_rotated("llama", "blk.3.attn_q.weight") && is_rotated("llama", "blk.3.attn_k.bias"));
        assert!(!is_rotated("llama", "blk.3.attn_v.weight") && !is_rotated("llama", "attn_q.weight"));
        assert!(is_rotated("minicpm", "blk.3.attn_q.weight") && !is_rotated("minicpm", "blk.3.attn_q.bias"));
    }

    #[test]
    fn an_architecture_has_names_of_its_own() {
        for (architecture, stored, name) in [
            ("gemma2", "ffn_norm", "pre_feedforward_layernorm"),
            ("glm4", "ffn_norm", "post_attention_layernorm"),
            ("glm4", "post_attention_norm", "post_self_attn_layernorm"),
            ("exaone4", "post_attention_norm", "post_attention_layernorm"),
            ("phi3", "attn_qkv", "self_attn.qkv_proj"),
            ("phi3", "ffn_up", "mlp.gate_up_proj"),
            ("nemotron", "ffn_up", "mlp.up_proj"),
            ("starcoder2", "ffn_up", "mlp.c_fc"),
            ("stablelm", "attn_q_norm", "self_attn.q_layernorm"),
        ] {
            let name = format!("model.layers.7.{name}.weight");
            assert_eq!(model_name(architecture, &format!("blk.7.{stored}.weight")), Some(name));
        }
        assert_eq!(model_name("llama", "blk.7.post_ffw_norm.weight"), None);
    }
}
