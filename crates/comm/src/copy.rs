//! Copying long blocks of memory.

/// From this length on the processor's own copy is faster: it does not read the memory that it will overwrite.
const LONG_BYTES: usize = 64 << 10;

/// As `copy_from_slice`; both slices have the same length.
pub fn copy(from: &[u8], into: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= LONG_BYTES && from.len() == into.len() && std::arch::is_x86_feature_detected!("ermsb") {
        // SAFETY: both ranges have this length, and do not overlap, since one is borrowed exclusively. The direction
        // flag is clear, as always in Rust code.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rdi") into.as_mut_ptr() => _,
                inout("rsi") from.as_ptr() => _,
                inout("rcx") from.len() => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    into.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    #[test]
    fn blocks_of_every_length_are_copied_whole() {
        for length in [0, 1, 65_535, 65_536, 100_001] {
            let from: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut into = vec![0; length];
            super::copy(&from, &mut into);
            assert!(from == into);
        }
    }
}
