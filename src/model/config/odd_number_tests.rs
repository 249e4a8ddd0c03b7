//! Configurations with numbers that only Python knows.

use super::tests::{base, open_text};
use super::*;
use crate::base::Code;

/// Python writes and reads such numbers; newer files spell them as objects.
#[test]
fn numbers_that_are_none_do_harm_only_where_they_are_used() {
    let text = base().to_string();
    let with_text = |field: &str, number: &str| {
        let mut changed = base();
        changed.as_object_mut().unwrap().remove(field);
        let rest = changed.to_string();
        format!("{{\"{field}\": {number}, {}", &rest[1..])
    };
    let expected = open_text(&text).unwrap();
    for (name, written) in [
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("Infinity", "1e999"),
        ("-Infinity", r#"{"__float__": "-Infinity"}"#),
    ] {
        let limits = format!("[0.0, {written}]");
        assert_eq!(open_text(&with_text("time_step_limit", &limits)).unwrap(), expected);
        for field in [
            "rope_theta",
            "hidden_size",
            "rms_norm_eps",
            "head_dim",
            "sliding_window",
            "eos_token_id",
            "rope_scaling",
            "rope_parameters",
            "tie_word_embeddings",
            "model_type",
            "layer_types",
            "quantization",
        ] {
            // A llama has no use for a window where no layer slides.
            let error = match open_text(&with_text(field, written)) {
                Err(error) => error,
                Ok(config) if field == "sliding_window" => {
                    assert_eq!(config, expected);
                    continue;
                }
                Ok(_) => panic!("{field}: {written}"),
            };
            assert_eq!(error.code(), Code::InvalidModel, "{error}");
            assert_eq!(error.detail().field.as_deref(), Some(field));
            let said = field == "layer_types" || error.message().contains(&format!(" is {name};"));
            assert!(said, "{error}");
        }
        let error =
            open_text(&with_text("rope_scaling", &format!(r#"{{"type": "linear", "factor": {written}}}"#)))
                .unwrap_err();
        assert_eq!(error.detail().field.as_deref(), Some("rope_scaling.factor"));
        // What would change the numbers is not understood.
        let error = open_text(&with_text("attn_logit_softcapping", written)).unwrap_err();
        assert_eq!(
            (error.code(), error.detail().field.as_deref()),
            (Code::Unsupported, Some("attn_logit_softcapping"))
        );
        assert!(error.message().contains(&format!(" is {name},")), "{error}");

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), &text).unwrap();
        let generation = folder.path().join("generation_config.json");
        std::fs::write(&generation, format!(r#"{{"temperature": {written}}}"#)).unwrap();
        assert_eq!(ModelConfig::open_folder(folder.path()).unwrap(), expected);
        std::fs::write(&generation, format!(r#"{{"eos_token_id": [1, {written}]}}"#)).unwrap();
        let error = ModelConfig::open_folder(folder.path()).unwrap_err();
        assert_eq!(error.detail().field.as_deref(), Some("eos_token_id"));
        assert_eq!(error.detail().file.as_deref(), Some(generation.as_path()));
    }
}
