//! Names of a llama-like model's tensors: GGUF's, and those that the families use.

/// The families' name of a tensor; `None` if there is no such name.
pub(super) fn model_name(stored: &str) -> Option<String> {
    match stored {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
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
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{number}.{part}.{kind}"))
}

/// Whether RoPE acts on what this tensor makes, so that its rows are stored interleaved.
pub(super) fn is_rotated(stored: &str) -> bool {
    let part = stored.rsplit('.').nth(1);
    stored.starts_with("blk.") && matches!(part, Some("attn_q" | "attn_k"))
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
            assert_eq!(model_name(stored).as_deref(), Some(name));
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
            assert_eq!(model_name(other), None, "{other}");
        }
        assert!(is_rotated("blk.3.attn_q.weight") && is_rotated("blk.3.attn_k.bias"));
        assert!(!is_rotated("blk.3.attn_v.weight") && !is_rotated("attn_q.weight"));
    }
}
