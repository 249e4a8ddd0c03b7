//! Scratch memory of float32 that begins at a cache line.

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Room that grows and is reused. What it holds is left from earlier uses.
#[derive(Default)]
pub struct Aligned(Vec<Line>);

impl Aligned {
    /// So many floats, with contents left from earlier uses.
    #[inline]
    pub fn floats(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
        // SAFETY: a line is sixteen floats without padding, and there are `lines` of them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
