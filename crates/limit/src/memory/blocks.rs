//! A list that grows and shrinks by small blocks, for the entries of a shard.
//!
//! One long allocation would move when it grows, and would leave holes in memory that nothing else fits into. With a
//! million buckets these holes would cost half as much memory as the buckets.

/// The number of values in a block.
const BLOCK: usize = 32;

pub(super) struct Blocks<T> {
    /// All blocks are full except the last, which is not empty.
    blocks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), len: 0 }
    }
}

impl<T> Blocks<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.blocks.get(index / BLOCK)?.get(index % BLOCK)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }

    pub(super) fn push(&mut self, value: T) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(value),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(value);
                self.blocks.push(block);
            }
        }
        self.len += 1;
    }

    /// Removes a value. The last value takes its index.
    pub(super) fn swap_remove(&mut self, index: usize) {
        let Some(block) = self.blocks.last_mut() else { return };
        let Some(last) = block.pop() else { return };
        if block.is_empty() {
            self.blocks.pop();
        }
        self.len -= 1;
        // If the removed value was the last one, nothing has this index any more.
        if let Some(removed) = self.get_mut(index) {
            *removed = last;
        }
    }

    /// Frees memory that the list of blocks does not need any more.
    pub(super) fn shrink(&mut self) {
        self.blocks.shrink_to(self.blocks.len());
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.blocks.iter().map(Vec::capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_behave_like_a_list(steps in prop::collection::vec(prop::option::weighted(0.4, 0_usize..100), 0..400)) {
            let (mut blocks, mut list) = (Blocks::default(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(index) if index < list.len() => {
                        blocks.swap_remove(index);
                        list.swap_remove(index);
                    }
                    _ => {
                        blocks.push(number);
                        list.push(number);
                    }
                }
                prop_assert_eq!(blocks.len(), list.len());
            }
            prop_assert!(blocks.iter().eq(&list));
            prop_assert!(blocks.capacity() < list.len() + BLOCK);
            prop_assert!((0..list.len() + 1).all(|index| blocks.get(index) == list.get(index)));
        }
    }
}
