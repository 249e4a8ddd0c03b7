//! What is to be known of an encoding, and what its planes look like.

use super::entry::Header;
use super::fields::{Fields, check_dtype, check_floats, check_size, wrong};
use crate::base::{Code, Result};
use crate::cache::encoding::{Affine, Encoding, Exact, RotatingEncoding};
use crate::cache::{TurboQuantCodes, TurboQuantForm};
use crate::mlx::{Array, Dtype};

/// An encoding whose planes are stored.
pub trait StoredEncoding: Encoding {
    /// A cache of all tokens.
    const KIND: &'static str;
    const PLANES: usize;
    /// Whether a cache that says nothing of the tokens that it may be cut to may not be cut at all.
    const UNCUT: bool = false;

    fn write(&self, header: &mut Header);

    fn read(fields: &mut Fields) -> Result<Self>;

    /// Checks types and sizes of `PLANES` planes.
    fn check(&self, planes: &[Array]) -> Result<()>;
}

/// The same for a window of tokens.
pub trait StoredWindow: StoredEncoding + RotatingEncoding {
    const ROTATING_KIND: &'static str;
}

impl StoredEncoding for Exact {
    const KIND: &'static str = "kv";
    const PLANES: usize = 2;

    fn write(&self, _header: &mut Header) {}

    fn read(_fields: &mut Fields) -> Result<Self> {
        Ok(Exact)
    }

    fn check(&self, planes: &[Array]) -> Result<()> {
        check_floats(planes, &[0, 1])
    }
}

impl StoredWindow for Exact {
    const ROTATING_KIND: &'static str = "rotating";
}

impl StoredEncoding for Affine {
    const KIND: &'static str = "qkv";
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

impl StoredWindow for Affine {
    const ROTATING_KIND: &'static str = "rotating-qkv";
}

impl StoredEncoding for TurboQuantCodes {
    const KIND: &'static str = "turboquant";
    const PLANES: usize = 5;
    const UNCUT: bool = true;

    fn write(&self, header: &mut Header) {
        let TurboQuantForm { key_bits, value_bits, key_dims, value_dims, dtype, deferred } = self.form();
        header.insert("kBits".into(), key_bits.into());
        header.insert("vBits".into(), value_bits.into());
        header.insert("headDim".into(), key_dims.into());
        header.insert("valueHeadDim".into(), value_dims.into());
        header.insert("dtype".into(), dtype.name().into());
        header.insert("deferred".into(), deferred.into());
    }

    fn read(fields: &mut Fields) -> Result<Self> {
        let (key_bits, value_bits) = (fields.number("kBits")?, fields.number("vBits")?);
        let (key_dims, value_dims) = (fields.number("headDim")?, fields.number("valueHeadDim")?);
        let (dtype, deferred) = (fields.float("dtype")?, fields.flag("deferred")?);
        let (key_bits, value_bits) = (key_bits as u32, value_bits as u32);
        let form = TurboQuantForm { key_bits, value_bits, key_dims, value_dims, dtype, deferred };
        TurboQuantCodes::new(form).map_err(|error| wrong(unsupported_field(form), error.message()))
    }

    fn check(&self, planes: &[Array]) -> Result<()> {
        let TurboQuantForm { key_bits, value_bits, key_dims, value_dims, .. } = self.form();
        let numbers = if key_bits == 8 { Dtype::Int8 } else { Dtype::Uint8 };
        let bytes = |dims: usize, bits: u32| dims * bits as usize / 8;
        let groups = |dims: usize| dims / TurboQuantCodes::GROUP;
        let expected = [
            (numbers, bytes(key_dims, key_bits)),
            (Dtype::Float16, groups(key_dims)),
            (Dtype::Float16, groups(key_dims)),
            (Dtype::Uint8, bytes(value_dims, value_bits)),
            (Dtype::Float16, groups(value_dims)),
        ];
        for (index, (dtype, size)) in expected.into_iter().enumerate() {
            check_dtype(planes, index, dtype)?;
            check_size(planes, index, size)?;
        }
        Ok(())
    }
}

/// The first field that says that there are no such codes.
fn unsupported_field(form: TurboQuantForm) -> &'static str {
    let TurboQuantForm { key_bits, value_bits, key_dims, .. } = form;
    let possible = TurboQuantForm { key_bits: 8, value_bits: 8, key_dims: 64, value_dims: 64, ..form };
    let others = [
        ("kBits", TurboQuantForm { key_bits, ..possible }),
        ("vBits", TurboQuantForm { value_bits, ..possible }),
        ("headDim", TurboQuantForm { key_dims, ..possible }),
    ];
    let wrong = others.into_iter().find(|(_, form)| TurboQuantCodes::new(*form).is_err());
    wrong.map_or("valueHeadDim", |(field, _)| field)
}

/// The encoding with these numbers.
pub fn affine(bits: usize, group: usize) -> Result<Affine> {
    Affine::new(bits as u32, group as u32).map_err(|error| {
        debug_assert_eq!(error.code(), Code::InvalidArgument);
        let field = if error.detail().field.as_deref() == Some("bits") { "bits" } else { "groupSize" };
        wrong(field, error.message())
    })
}
