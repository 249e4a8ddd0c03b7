//! What is to be known of an encoding, and what its planes look like.

use super::entry::Header;
use super::fields::{Fields, check_dtype, check_floats, check_size, wrong};
use crate::base::{Code, Result};
use crate::cache::encoding::{Affine, Exact, RotatingEncoding};
use crate::mlx::{Array, Dtype};

/// An encoding whose planes are stored.
pub trait StoredEncoding: RotatingEncoding {
    /// A cache of all tokens.
    const KIND: &'static str;
    /// A cache of a window of tokens.
    const ROTATING_KIND: &'static str;
    const PLANES: usize;

    fn write(&self, header: &mut Header);

    fn read(fields: &mut Fields) -> Result<Self>;

    /// Checks types and sizes of `PLANES` planes.
    fn check(&self, planes: &[Array]) -> Result<()>;
}

impl StoredEncoding for Exact {
    const KIND: &'static str = "kv";
    const ROTATING_KIND: &'static str = "rotating";
    const PLANES: usize = 2;

    fn write(&self, _header: &mut Header) {}

    fn read(_fields: &mut Fields) -> Result<Self> {
        Ok(Exact)
    }

    fn check(&self, planes: &[Array]) -> Result<()> {
        check_floats(planes, &[0, 1])
    }
}

impl StoredEncoding for Affine {
    const KIND: &'static str = "qkv";
    const ROTATING_KIND: &'static str = "rotating-qkv";
    const PLANES: usize = 6;

    fn write(&self, header: &mut Header) {
        header.insert("bits".into(), self.bits().into());
        header.insert("groupSize".into(), self.group().into());
    }

    fn read(fields: &mut Fields) -> Result<Self> {
        let (bits, group) = (fields.number("bits")?, fields.number("groupSize")?);
        affine(bits, group)
    }

    fn check(&self, planes: &[Array]) -> Result<()> {
        check_floats(planes, &[1, 2, 4, 5])?;
        for words in [0, 3] {
            check_dtype(planes, words, Dtype::Uint32)?;
            // A group takes as many words as it has numbers, less the bits that these save.
            let groups = planes[words + 1].dim(3) as usize;
            check_size(planes, words, groups * (self.group() * self.bits() / 32) as usize)?;
            check_size(planes, words + 2, groups)?;
        }
        Ok(())
    }
}

/// The encoding with these numbers.
pub fn affine(bits: usize, group: usize) -> Result<Affine> {
    Affine::new(bits as u32, group as u32).map_err(|error| {
        debug_assert_eq!(error.code(), Code::InvalidArgument);
        let field = if error.detail().field.as_deref() == Some("bits") { "bits" } else { "groupSize" };
        wrong(field, error.message())
    })
}
