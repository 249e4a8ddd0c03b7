//! Values that live on the owner thread, and the keys to them that may travel.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use super::fork::in_forked_child;
use super::owner::{Context, Owner};
use crate::base::{Error, Result, panics};

/// Names a value in the slab. A later value never has the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    index: usize,
    generation: u64,
}

#[derive(Default)]
pub struct Slab {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

struct Slot {
    generation: u64,
    value: Option<Box<dyn Any>>,
}

impl Slab {
    pub fn insert<T: 'static>(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.value = Some(Box::new(value));
        Key { index, generation: slot.generation }
    }

    pub fn get<T: 'static>(&self, key: Key) -> Result<&T> {
        let slot = self.slots.get(key.index).filter(|slot| slot.generation == key.generation);
        slot.and_then(|slot| slot.value.as_ref()?.downcast_ref()).ok_or_else(gone)
    }

    pub fn get_mut<T: 'static>(&mut self, key: Key) -> Result<&mut T> {
        let slot = self.slots.get_mut(key.index).filter(|slot| slot.generation == key.generation);
        slot.and_then(|slot| slot.value.as_mut()?.downcast_mut()).ok_or_else(gone)
    }

    /// Takes a value out; its key opens nothing any more.
    pub fn take<T: 'static>(&mut self, key: Key) -> Result<T> {
        self.get::<T>(key)?;
        let value = self.remove(key).ok_or_else(gone)?;
        value.downcast().map(|value| *value).map_err(|_| gone())
    }

    fn remove(&mut self, key: Key) -> Option<Box<dyn Any>> {
        let slot = self.slots.get_mut(key.index).filter(|slot| slot.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation += 1;
        self.free.push(key.index);
        Some(value)
    }

    /// Drops a value, if it is there. A panic in its drop ends here.
    pub fn discard(&mut self, key: Key) {
        if let Some(value) = self.remove(key) {
            panics::quietly("a drop on the owner thread", || drop(value));
        }
    }

    /// Drops everything, the latest first: caches before the models they came from.
    pub fn clear(&mut self) {
        for slot in self.slots.iter_mut().rev() {
            if let Some(value) = slot.value.take() {
                panics::quietly("a drop on the owner thread", || drop(value));
            }
        }
    }
}

fn gone() -> Error {
    Error::internal("a value of the owner thread is gone")
}

/// A value on the owner thread, held from anywhere. It opens with the owner's context only, which
/// exists on that thread alone; its drop is posted there.
pub struct EngineBox<T> {
    owner: Arc<Owner>,
    key: Key,
    value: PhantomData<fn() -> T>,
}

impl<T: 'static> EngineBox<T> {
    /// Takes over a value that was put into the slab of `owner`.
    pub fn adopt(owner: &Arc<Owner>, key: Key) -> Self {
        EngineBox { owner: Arc::clone(owner), key, value: PhantomData }
    }

    /// The key, for work on the owner thread while this box lives.
    pub fn key(&self) -> Key {
        self.key
    }

    pub fn open<'a>(&self, context: &'a mut Context) -> Result<&'a mut T> {
        context.slab.get_mut(self.key)
    }

    /// Drops the value and waits until it is gone.
    pub fn drop_now(self) {
        let key = self.key;
        let _stopped = self.owner.call("a drop", move |context| {
            context.slab.discard(key);
            Ok(())
        });
    }
}

impl<T> Drop for EngineBox<T> {
    fn drop(&mut self) {
        if !in_forked_child() {
            self.owner.post_drop(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_only_what_they_were_made_for() {
        let mut slab = Slab::default();
        let number = slab.insert(7u32);
        let text = slab.insert(String::from("x"));
        assert_eq!(*slab.get::<u32>(number).unwrap(), 7);
        assert!(slab.get::<u32>(text).is_err());
        slab.discard(number);
        slab.discard(number);
        let other = slab.insert(8u32);
        assert!(slab.get_mut::<u32>(number).is_err());
        assert_eq!(slab.take::<u32>(other).unwrap(), 8);
        assert!(slab.take::<u32>(other).is_err());
    }

    #[test]
    fn a_drop_that_panics_takes_nothing_with_it() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("bomb");
            }
        }
        let mut slab = Slab::default();
        let bomb = slab.insert(Bomb);
        let number = slab.insert(1u8);
        slab.discard(bomb);
        assert_eq!(*slab.get::<u8>(number).unwrap(), 1);
        slab.insert(Bomb);
        slab.clear();
    }
}
