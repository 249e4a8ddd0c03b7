//! What a snapshot of a cache is made of.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{Code, Error, Result};
use crate::mlx::{Array, Dtype};

/// A JSON object: all that is to be known of a cache besides its tensors.
pub type Header = Map<String, Value>;

/// One cache as it is stored.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name of the codec.
    pub kind: String,
    /// Without `kind`.
    pub header: Header,
    pub tensors: Vec<Tensor>,
}

/// A tensor of a snapshot. It never changes, whatever becomes of the cache that it comes from.
#[derive(Clone)]
pub enum Tensor {
    /// Often a view of an array that may not have been computed yet.
    Array(Array),
    /// Memory of the host, in row-major order: exactly the bytes of the shape.
    Bytes { dtype: Dtype, shape: Vec<i32>, data: Arc<dyn AsRef<[u8]> + Send + Sync> },
}

impl Tensor {
    pub fn dtype(&self) -> Dtype {
        match self {
            Tensor::Array(array) => array.dtype(),
            Tensor::Bytes { dtype, .. } => *dtype,
        }
    }

    pub fn shape(&self) -> &[i32] {
        match self {
            Tensor::Array(array) => array.shape(),
            Tensor::Bytes { shape, .. } => shape,
        }
    }

    pub fn byte_size(&self) -> usize {
        match self {
            Tensor::Array(array) => array.byte_size(),
            Tensor::Bytes { data, .. } => (**data).as_ref().len(),
        }
    }

    /// The bytes of a uint8 tensor in row-major order: computed and copied if it is an array. INCOMPATIBLE_CHECKPOINT
    /// if they are not those of the shape.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        let wrong = |field: &str| {
            Error::new(Code::IncompatibleCheckpoint, format!("{self:?} does not hold bytes")).field(field)
        };
        if self.dtype() != Dtype::Uint8 {
            return Err(wrong("dtype"));
        }
        match self {
            Tensor::Array(array) => Ok(Cow::Owned(array.to_vec::<u8>()?)),
            Tensor::Bytes { shape, data, .. } => {
                let bytes = (**data).as_ref();
                let size = |size: usize, dim: &i32| size.checked_mul(usize::try_from(*dim).ok()?);
                if shape.iter().try_fold(1, size) != Some(bytes.len()) {
                    return Err(wrong("shape"));
                }
                Ok(Cow::Borrowed(bytes))
            }
        }
    }

    /// The tensor as an array; bytes are copied. INCOMPATIBLE_CHECKPOINT if they are not those of the shape.
    pub fn to_array(&self) -> Result<Array> {
        match self {
            Tensor::Array(array) => Ok(array.clone()),
            Tensor::Bytes { dtype, shape, data } => Array::from_bytes(*dtype, shape, (**data).as_ref())
                .map_err(|error| Error::new(Code::IncompatibleCheckpoint, error.message()).field("shape")),
        }
    }
}

impl fmt::Debug for Tensor {
    /// Shape and type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype().name(), self.shape())
    }
}
