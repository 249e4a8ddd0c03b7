//! The fake back end's account of memory: an allocator with a pool, without the memory.

use parking_lot::Mutex;

use crate::generate::runtime::DeviceMemory;

#[derive(Debug, Default)]
pub struct FakeHeap(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    memory: DeviceMemory,
    pool_limit: u64,
}

impl FakeHeap {
    pub fn memory(&self) -> DeviceMemory {
        self.0.lock().memory
    }

    pub fn allocate(&self, bytes: u64) {
        let memory = &mut self.0.lock().memory;
        memory.pooled -= memory.pooled.min(bytes);
        memory.active += bytes;
        memory.peak = memory.peak.max(memory.active);
    }

    pub fn free(&self, bytes: u64) {
        let numbers = &mut *self.0.lock();
        numbers.memory.active -= numbers.memory.active.min(bytes);
        numbers.memory.pooled = (numbers.memory.pooled + bytes).min(numbers.pool_limit);
    }

    pub fn reset_peak(&self) {
        let memory = &mut self.0.lock().memory;
        memory.peak = memory.active;
    }

    pub fn set_pool_limit(&self, bytes: u64) {
        let numbers = &mut *self.0.lock();
        numbers.pool_limit = bytes;
        numbers.memory.pooled = numbers.memory.pooled.min(bytes);
    }

    pub fn trim(&self) {
        self.0.lock().memory.pooled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_bytes_are_pooled_up_to_the_limit_and_reused() {
        let heap = FakeHeap::default();
        heap.set_pool_limit(100);
        heap.allocate(150);
        heap.free(150);
        assert_eq!(heap.memory(), DeviceMemory { active: 0, pooled: 100, peak: 150 });
        heap.allocate(40);
        heap.reset_peak();
        assert_eq!(heap.memory(), DeviceMemory { active: 40, pooled: 60, peak: 40 });
        heap.trim();
        assert_eq!(heap.memory().pooled, 0);
    }
}
