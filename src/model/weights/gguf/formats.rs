//! The tensor formats of GGUF by their numbers.

use super::super::blocks::BlockFormat;
use super::super::types::{ElementType, Encoding};

/// How a format stores a row: `elements` neighbours take `bytes`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageFormat {
    pub(super) encoding: Encoding,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

/// `None` for a number without a known format.
pub(super) fn storage(number: u32) -> Option<StorageFormat> {
    let plain = |element: ElementType| StorageFormat {
        encoding: Encoding::Plain(element),
        elements: 1,
        bytes: element.size() as u64,
    };
    let block = |format: BlockFormat| StorageFormat {
        encoding: Encoding::Block(format),
        elements: format.elements() as u64,
        bytes: format.bytes() as u64,
    };
    let other = |name: &'static str, elements: u64, bytes: u64| StorageFormat {
        encoding: Encoding::Other(name),
        elements,
        bytes,
    };
    Some(match number {
        0 => plain(ElementType::F32),
        1 => plain(ElementType::F16),
        2 => block(BlockFormat::Q4_0),
        3 => block(BlockFormat::Q4_1),
        6 => block(BlockFormat::Q5_0),
        7 => block(BlockFormat::Q5_1),
        8 => block(BlockFormat::Q8_0),
        10 => block(BlockFormat::Q2K),
        11 => block(BlockFormat::Q3K),
        12 => block(BlockFormat::Q4K),
        13 => block(BlockFormat::Q5K),
        14 => block(BlockFormat::Q6K),
        16 => other("IQ2_XXS", 256, 66),
        17 => other("IQ2_XS", 256, 74),
        18 => other("IQ3_XXS", 256, 98),
        19 => other("IQ1_S", 256, 50),
        20 => other("IQ4_NL", 32, 18),
        21 => other("IQ3_S", 256, 110),
        22 => other("IQ2_S", 256, 82),
        23 => other("IQ4_XS", 256, 136),
        24 => plain(ElementType::I8),
        25 => plain(ElementType::I16),
        26 => plain(ElementType::I32),
        27 => plain(ElementType::I64),
        28 => other("F64", 1, 8),
        29 => other("IQ1_M", 256, 56),
        30 => plain(ElementType::Bf16),
        34 => other("TQ1_0", 256, 54),
        35 => other("TQ2_0", 256, 66),
        39 => other("MXFP4", 32, 17),
        _ => return None,
    })
}
