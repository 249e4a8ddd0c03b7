//! Keys and values in the codes of TurboQuant.

use super::encoding::{Encoding, counted};
use super::full::{FullCache, PlainCache};
use super::growing::Growing;
use super::{LayerCache, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::{EncodedKeys, EncodedValues, KeysValues, TurboQuant};
use crate::mlx::{Array, Dtype};

/// `kv:turboquant:<key bits>:<value bits>`: made of a plain cache that covers tokens, since the codes depend on the
/// sizes of the heads. All tokens are decoded at each append.
pub type TurboQuantCache = FullCache<TurboQuantCodes>;

/// Five planes: numbers of the keys `[…, key dims * key bits / 8]` (int8 for 8 bits, else uint8), their scales and zeros
/// `[…, key dims / 32]` (float16), numbers of the values `[…, value dims * value bits / 8]` (uint8), their scales
/// `[…, value dims / 32]` (float16).
///
/// A group of 32 equal numbers of a key that are not 0 is read as NaN: so the format has it.
#[derive(Clone, Debug)]
pub struct TurboQuantCodes {
    form: TurboQuantForm,
    codec: TurboQuant,
}

/// What planes of codes mean, and how they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurboQuantForm {
    pub key_bits: u32,
    pub value_bits: u32,
    pub key_dims: usize,
    pub value_dims: usize,
    /// The type of the keys that are encoded. Keys and values are decoded in it.
    pub dtype: Dtype,
    /// Values are read rotated, and attention's result is rotated back.
    pub deferred: bool,
}

impl TurboQuantCodes {
    /// Elements that share a scale.
    pub const GROUP: usize = TurboQuant::GROUP;

    /// UNSUPPORTED unless keys have 2, 4, 5 or 8 bits, values 2, 3, 4, 5 or 8, and heads 64, 128, 256 or 512 elements.
    pub fn new(form: TurboQuantForm) -> Result<Self> {
        let TurboQuantForm { key_bits, value_bits, key_dims, value_dims, .. } = form;
        Ok(TurboQuantCodes { form, codec: TurboQuant::new(key_bits, value_bits, key_dims, value_dims)? })
    }

    pub fn form(&self) -> TurboQuantForm {
        self.form
    }
}

impl TurboQuantCache {
    /// The tokens of a plain cache. `None` if there are none: nothing tells the sizes of the heads.
    pub fn of_plain(
        plain: &PlainCache,
        key_bits: u32,
        value_bits: u32,
        deferred: bool,
    ) -> Result<Option<Self>> {
        if plain.offset() == 0 {
            return Ok(None);
        }
        let [keys, values] = counted(plain.columns.used()?)?;
        let encoding = TurboQuantCodes::new(TurboQuantForm {
            key_bits,
            value_bits,
            key_dims: keys.dim(-1) as usize,
            value_dims: values.dim(-1) as usize,
            dtype: keys.dtype(),
            deferred,
        })?;
        let planes = encoding.encode(&keys, &values)?;
        Ok(Some(FullCache { encoding, columns: Growing::laid_out(planes, plain.offset()) }))
    }
}

impl Encoding for TurboQuantCodes {
    /// INTERNAL for heads of other sizes or keys of another type than those that were encoded first.
    fn encode(&self, keys: &Array, values: &Array) -> Result<Vec<Array>> {
        let TurboQuantForm { key_dims, value_dims, dtype, .. } = self.form;
        if [keys.dim(-1) as usize, values.dim(-1) as usize] != [key_dims, value_dims] || keys.dtype() != dtype
        {
            return Err(Error::internal(format!(
                "codes for {:?} cannot take {keys:?} and {values:?}",
                self.form
            )));
        }
        let keys = self.codec.encode_keys(keys)?;
        let values = self.codec.encode_values(values)?;
        Ok(vec![keys.numbers, keys.scales, keys.zeros, values.numbers, values.scales])
    }

    fn decode(&self, planes: Vec<Array>) -> Result<KeysValues> {
        let [key_numbers, key_scales, key_zeros, value_numbers, value_scales] = counted(planes)?;
        let keys = EncodedKeys { numbers: key_numbers, scales: key_scales, zeros: key_zeros };
        let values = EncodedValues { numbers: value_numbers, scales: value_scales };
        let TurboQuantForm { dtype, deferred, .. } = self.form;
        let keys = self.codec.decode_keys(&keys, dtype)?;
        Ok(if deferred {
            let values = self.codec.decode_values_deferred(&values, dtype)?;
            KeysValues::Rotated { keys, values, signs: self.codec.signs().clone() }
        } else {
            KeysValues::Plain { keys, values: self.codec.decode_values_eager(&values, dtype)? }
        })
    }

    fn signature(&self) -> Signature {
        Signature::TurboQuant { key_bits: self.form.key_bits, value_bits: self.form.value_bits }
    }
}
