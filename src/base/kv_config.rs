//! The table of a model's layers that `kv_config.json` holds.

use serde::Deserialize;

use super::options::{AffineGroups, AffineLayers};
use super::{Error, Result};

/// Some thousand times what a real one has.
const LONGEST: usize = 1 << 24;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    layer_idx: usize,
    bits: u32,
    group_size: Option<u32>,
}

/// INVALID_ARGUMENT for a text that is longer than any table.
pub fn check_kv_config_size(bytes: usize) -> Result<()> {
    if bytes <= LONGEST {
        return Ok(());
    }
    let text = format!("kv_config has at most {LONGEST} bytes, not {bytes}");
    Err(Error::invalid_argument(text).field("kv_config"))
}

/// Reads a list of `{"layer_idx": …, "bits": …, "group_size": …}`, as mlx-optiq writes it; without a group size it is
/// 64. Layers that are not in the list are left as they are. INVALID_ARGUMENT for anything else.
pub fn parse_kv_config(text: &str) -> Result<AffineLayers> {
    check_kv_config_size(text.len())?;
    let entries: Vec<Entry> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Error::invalid_argument(format!(
            "kv_config is no list of {{\"layer_idx\": …, \"bits\": …, \"group_size\": …}}: see line {line}, column {column}"
        ))
        .field("kv_config")
    })?;
    let groups = |entry: &Entry| AffineGroups {
        bits: entry.bits,
        group: entry.group_size.unwrap_or(AffineGroups::DEFAULT_GROUP),
    };
    let mut table = Vec::with_capacity(entries.len());
    for entry in &entries {
        let groups = groups(entry);
        groups.validate().map_err(|error| error.field("kv_config").position(entry.layer_idx as u64))?;
        table.push((entry.layer_idx, groups));
    }
    Ok(AffineLayers::Table(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_layers_is_read_and_nothing_else() {
        let text = r#"[{"layer_idx": 3, "bits": 8, "group_size": 32}, {"layer_idx": 0, "bits": 4}]"#;
        let expected =
            vec![(3, AffineGroups { bits: 8, group: 32 }), (0, AffineGroups { bits: 4, group: 64 })];
        assert_eq!(parse_kv_config(text).unwrap(), AffineLayers::Table(expected));
        assert_eq!(parse_kv_config("[]").unwrap(), AffineLayers::Table(vec![]));
        let refused = parse_kv_config(r#"[{"layer_idx": 3, "bits": 5}]"#).unwrap_err();
        assert_eq!(refused.detail().position, Some(3), "the layer");
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{}",
            "[1]",
            r#"[{"bits": 4}]"#,
            r#"[{"layer_idx": -1, "bits": 4}]"#,
            r#"[{"layer_idx": 0, "bits": 4.5}]"#,
            r#"[{"layer_idx": 0, "bits": 4, "mode": "x"}]"#,
            "[] []",
            &deep,
        ] {
            let refused = parse_kv_config(text).unwrap_err();
            assert_eq!(refused.detail().field.as_deref(), Some("kv_config"));
        }
    }
}
