//! What a row asks of the engine around it.

use crate::base::Result;

pub trait Surroundings {
    /// Asks whether `bytes` more may be taken for `what`. OUT_OF_MEMORY if not.
    fn admit(&mut self, what: &str, bytes: u64) -> Result<()>;

    /// A good moment to give freed buffers back: large intermediate results were just dropped.
    fn relieve(&mut self);
}
