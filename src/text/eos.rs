//! The ids that end a generation, from every file that names some.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::base::quote::brief;
use crate::base::{Error, Result};

/// Adds the ids of `value`: an integer, a list of integers, or null. Negative numbers mean none.
pub(super) fn add_ids(set: &mut BTreeSet<u32>, value: &Value, field: &str) -> Result<()> {
    let bad = || {
        Error::invalid_model(format!(
            "{field} is {}, neither a token id nor a list of token ids",
            brief(&value.to_string())
        ))
        .field(field)
    };
    match value {
        Value::Null => Ok(()),
        Value::Number(number) => {
            let id = number.as_i64().ok_or_else(bad)?;
            if id >= 0 {
                set.insert(u32::try_from(id).map_err(|_| bad())?);
            }
            Ok(())
        }
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| if item.is_array() { Err(bad()) } else { add_ids(set, item, field) }),
        _ => Err(bad()),
    }
}
