//! From a form of keys and values to the code that was compiled for it.

pub(super) use super::affine::Affine;
pub(super) use super::joint::Joint;
pub(super) use super::shape::KvForm;
pub(super) use super::stored::{Bf16, F16, F32};
pub(super) use super::turbo::{TurboKeys, TurboValues};
pub(super) use crate::mlx::kernels::float::Float;

/// Calls a method with the type of a form: of its keys, or of its values.
macro_rules! for_form {
    (keys $form:expr, $($call:tt)*) => {
        for_form!($form, key_bits TurboKeys [2 4 5], [F32, F16, Bf16], $($call)*)
    };
    (values $form:expr, $($call:tt)*) => {
        for_form!($form, value_bits TurboValues [2 3 4 5], [Joint<F32>, Joint<F16>, Joint<Bf16>], $($call)*)
    };
    ($form:expr, $bits:ident $turbo:ident [$($n:literal)*], [$f32:ty, $f16:ty, $bf16:ty],
     $this:ident . $method:ident $arguments:tt) => {{
        use $crate::mlx::kernels::attention::forms::*;
        match $form {
            KvForm::F32 => $this.$method::<F32> $arguments,
            KvForm::F16 => $this.$method::<F16> $arguments,
            KvForm::Bf16 => $this.$method::<Bf16> $arguments,
            KvForm::Joint(Float::F32) => $this.$method::<$f32> $arguments,
            KvForm::Joint(Float::F16) => $this.$method::<$f16> $arguments,
            KvForm::Joint(Float::Bf16) => $this.$method::<$bf16> $arguments,
            KvForm::Affine { bits: 4, .. } => $this.$method::<Affine<4>> $arguments,
            KvForm::Affine { .. } => $this.$method::<Affine<8>> $arguments,
            $(KvForm::Turbo { $bits: $n, .. } => $this.$method::<$turbo<$n>> $arguments,)*
            KvForm::Turbo { .. } => $this.$method::<$turbo<8>> $arguments,
        }
    }};
}

pub(super) use for_form;
