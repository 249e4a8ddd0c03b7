//! Views of an operation's memory as numbers.

use crate::base::{Error, Result};

/// The elements of a float32 array.
pub(crate) fn floats(bytes: &[u8]) -> Result<&[f32]> {
    // SAFETY: every bit pattern is a float.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    whole(before, after)?;
    Ok(floats)
}

/// As `floats`, to be written.
pub(crate) fn floats_mut(bytes: &mut [u8]) -> Result<&mut [f32]> {
    // SAFETY: every bit pattern is a float, and every float is bytes.
    let (before, floats, after) = unsafe { bytes.align_to_mut::<f32>() };
    whole(before, after)?;
    Ok(floats)
}

/// The elements of a uint32 array.
pub(crate) fn words(bytes: &[u8]) -> Result<&[u32]> {
    // SAFETY: every bit pattern is a number.
    let (before, words, after) = unsafe { bytes.align_to::<u32>() };
    whole(before, after)?;
    Ok(words)
}

fn whole(before: &[u8], after: &[u8]) -> Result<()> {
    if before.is_empty() && after.is_empty() {
        return Ok(());
    }
    Err(Error::internal("MLX laid numbers out at an odd address"))
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    #[test]
    fn odd_addresses_are_refused() {
        let memory = [0u32; 4];
        // SAFETY: numbers are bytes.
        let (_, bytes, _) = unsafe { memory.align_to::<u8>() };
        assert_eq!(floats(bytes).unwrap().len(), 4);
        assert!(floats(&bytes[1..13]).is_err());
        assert!(words(&bytes[..7]).is_err());
    }
}
