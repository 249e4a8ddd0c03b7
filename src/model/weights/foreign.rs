//! Matrices that other programs than MLX have quantised: told by what stands beside them, and refused by name.

use super::files::WeightFiles;
use crate::base::Error;
use crate::base::quote;

/// Tensors of a module, and whose they are.
const SIGNS: [(&str, &str); 12] = [
    ("qweight", "AWQ or GPTQ"),
    ("qzeros", "AWQ or GPTQ"),
    ("g_idx", "GPTQ"),
    ("weight_packed", "compressed-tensors"),
    ("weight.quant_map", "bitsandbytes"),
    ("weight.absmax", "bitsandbytes"),
    ("SCB", "bitsandbytes"),
    ("weight_scale_inv", "fp8"),
    ("weight_scale", "fp8, compressed-tensors or ModelOpt"),
    ("W_q", "HQQ"),
    ("codebooks", "AQLM"),
    ("weight._data", "quanto"),
];

/// UNSUPPORTED naming the method and a tensor if the module at `path` was quantised by another program.
pub(super) fn error(files: &WeightFiles, path: &str) -> Option<Error> {
    SIGNS.iter().find_map(|(part, method)| {
        let tensor = files.get(&format!("{path}.{part}"))?;
        let error = Error::unsupported(format!(
            "tensor {} shows that {} was quantised by {method}, which is not supported",
            quote::name(tensor.stored_name()),
            quote::name(path)
        ));
        Some(error.file(files.files()[tensor.file].path()).tensor(tensor.stored_name()))
    })
}
