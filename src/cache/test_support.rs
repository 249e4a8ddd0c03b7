//! Columns that name their token, and what attention makes of a cache's answer.

use super::LayerCache;
use super::encoding::{Affine, Encoding, Exact};
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Dtype, Element, Mask, prim};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// What tokens look like.
#[derive(Clone, Copy)]
pub struct Look {
    pub heads: usize,
    pub key_dims: usize,
    pub value_dims: usize,
    pub dtype: Dtype,
}

impl Look {
    pub const SMALL: Look = Look { heads: 2, key_dims: 4, value_dims: 3, dtype: Dtype::Float32 };
    /// Quantisable, with unequal sizes of keys and values.
    pub const WIDE: Look = Look { heads: 2, key_dims: 96, value_dims: 64, dtype: Dtype::Float32 };

    /// What tokens `ids` have, in float64: of the keys or of the values, in the order `[heads, tokens, dims]`.
    pub fn numbers(&self, ids: &[u32], keys: bool) -> Vec<f64> {
        let dims = if keys { self.key_dims } else { self.value_dims };
        let mut all = Vec::with_capacity(self.heads * ids.len() * dims);
        for head in 0..self.heads {
            for &id in ids {
                let seed = u64::from(id) << 9 | (head as u64) << 1 | u64::from(keys);
                let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95));
                all.extend((0..dims).map(|_| (random.next() >> 40) as f64 / (1u64 << 22) as f64 - 2.0));
            }
        }
        all
    }

    fn array(&self, ids: &[u32], keys: bool) -> Array {
        let dims = if keys { self.key_dims } else { self.value_dims };
        let numbers: Vec<f32> = self.numbers(ids, keys).into_iter().map(|number| number as f32).collect();
        let shape = [1, self.heads as i32, ids.len() as i32, dims as i32];
        prim::astype(&Array::from_slice(&numbers, &shape).unwrap(), self.dtype).unwrap()
    }

    pub fn keys(&self, ids: &[u32]) -> Array {
        self.array(ids, true)
    }

    pub fn values(&self, ids: &[u32]) -> Array {
        self.array(ids, false)
    }

    pub fn append(&self, cache: &mut dyn LayerCache, ids: &[u32]) -> Vec<Vec<u8>> {
        columns(&cache.append(&self.keys(ids), &self.values(ids)).unwrap())
    }

    /// The bytes that each token should be stored as: all of them encoded in one go.
    pub fn expected(&self, ids: &[u32], quantised: Option<Affine>) -> Vec<Vec<u8>> {
        match quantised {
            Some(affine) => self.expected_in(ids, &affine),
            None => self.expected_in(ids, &Exact),
        }
    }

    /// The same in any encoding.
    pub fn expected_in(&self, ids: &[u32], encoding: &impl Encoding) -> Vec<Vec<u8>> {
        if ids.is_empty() {
            return Vec::new();
        }
        let planes = encoding.encode(&self.keys(ids), &self.values(ids)).unwrap();
        columns(&encoding.decode(planes).unwrap())
    }
}

pub fn affine(bits: u32, group: u32) -> Affine {
    Affine::new(bits, group).unwrap()
}

/// The elements' bytes in row-major order.
pub fn raw(array: &Array) -> Vec<u8> {
    fn bytes<T: Element, const N: usize>(array: &Array, of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(array.byte_size());
        array.read(|all: &[T]| all.iter().for_each(|&one| bytes.extend_from_slice(&of(one)))).unwrap();
        bytes
    }
    match array.dtype() {
        Dtype::Float32 => bytes(array, f32::to_le_bytes),
        Dtype::Uint32 => bytes(array, u32::to_le_bytes),
        Dtype::Uint8 => bytes(array, u8::to_le_bytes),
        Dtype::Int8 => bytes(array, i8::to_le_bytes),
        Dtype::Float16 => bytes(array, half::f16::to_le_bytes),
        Dtype::Bfloat16 => bytes(array, half::bf16::to_le_bytes),
        other => panic!("{other:?}"),
    }
}

pub fn planes(read: &KeysValues) -> Vec<Array> {
    match read {
        KeysValues::Plain { keys, values } | KeysValues::Rotated { keys, values, .. } => {
            vec![keys.clone(), values.clone()]
        }
        KeysValues::Affine { keys, values, .. } => [keys.clone(), values.clone()].concat(),
    }
}

/// The bytes of each token in what attention reads.
pub fn columns(read: &KeysValues) -> Vec<Vec<u8>> {
    plane_columns(&planes(read))
}

/// The bytes of each token in planes.
pub fn plane_columns(planes: &[Array]) -> Vec<Vec<u8>> {
    let tokens = planes[0].dim(2) as usize;
    let mut all = vec![Vec::new(); tokens];
    for plane in planes {
        assert_eq!(plane.dim(2) as usize, tokens);
        let bytes = raw(plane);
        let size = bytes.len() / (plane.dim(1) as usize * tokens);
        for (at, piece) in bytes.chunks(size).enumerate() {
            all[at % tokens].extend(piece);
        }
    }
    all
}

/// Which keys each query sees.
pub fn seen(mask: &Mask, queries: usize, keys: usize) -> Vec<Vec<bool>> {
    match mask {
        Mask::None => vec![vec![true; keys]; queries],
        Mask::Causal => {
            (0..queries).map(|query| (0..keys).map(|key| key + queries <= keys + query).collect()).collect()
        }
        Mask::Array(mask) => {
            assert_eq!((mask.dtype(), mask.shape()), (Dtype::Bool, &[queries as i32, keys as i32][..]));
            let numbers = prim::astype(mask, Dtype::Int32).unwrap().to_vec::<i32>().unwrap();
            numbers.chunks(keys).map(|row| row.iter().map(|&seen| seen != 0).collect()).collect()
        }
    }
}

/// Appends and returns what each new token's query sees, in the order that the columns lie in.
pub fn attended(
    cache: &mut dyn LayerCache,
    look: Look,
    ids: &[u32],
    window: Option<usize>,
) -> Vec<Vec<Vec<u8>>> {
    let mask = cache.mask(ids.len(), window).unwrap();
    let columns = look.append(cache, ids);
    let visible = |row: Vec<bool>| {
        columns.iter().zip(row).filter(|(_, seen)| *seen).map(|(column, _)| column.clone()).collect()
    };
    seen(&mask, ids.len(), columns.len()).into_iter().map(visible).collect()
}
