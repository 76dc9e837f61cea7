//! Classes of processor time and memory: the allocation options that forests tell apart (LIBRA, section 4.3.1).
//!
//! A class decides where trees split, and whether the shown accuracy counts a prediction as right. Amounts are taken
//! from the samples in leaves, so a coarse class wastes nothing.

use crate::amount::Resource;

/// Below one core, a quarter of it is the least that makes a difference worth a loan; above, whole cores are what
/// threads use.
const CPU_STEP_MILLI_CORES: u64 = 250;

/// Most interpreters with a library or two need about so much: less is one class.
const MIN_MEMORY_CLASS_BYTES: u64 = 64 << 20;

/// The class of an amount.
pub(super) fn class(resource: Resource, units: u64) -> u16 {
    match resource {
        Resource::Cpu => cpu_class(units),
        Resource::Memory => memory_class(units),
    }
}

fn cpu_class(milli_cores: u64) -> u16 {
    if milli_cores <= 1_000 {
        return milli_cores.div_ceil(CPU_STEP_MILLI_CORES).max(1) as u16;
    }
    u16::try_from(milli_cores.div_ceil(1_000) + 3).unwrap_or(u16::MAX)
}

/// Two classes for each doubling: powers of two, which people configure, and one between each two of them.
fn memory_class(bytes: u64) -> u16 {
    if bytes <= MIN_MEMORY_CLASS_BYTES {
        return 0;
    }
    (2.0 * (bytes as f64 / MIN_MEMORY_CLASS_BYTES as f64).log2() - 1e-9).ceil() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_classes_are_quarters_then_cores() {
        let milli_cores = [0, 1, 250, 251, 750, 1_000, 1_001, 2_000, 2_001, u64::MAX];
        assert_eq!(
            milli_cores.map(|units| class(Resource::Cpu, units)),
            [1, 1, 1, 2, 3, 4, 5, 5, 6, u16::MAX]
        );
    }

    #[test]
    fn memory_classes_are_halves_of_doublings() {
        let mib = [0, 64, 65, 90, 91, 128, 181, 182, 1_024, 1_025];
        assert_eq!(
            mib.map(|units| class(Resource::Memory, units << 20)),
            [0, 0, 1, 1, 2, 2, 3, 4, 8, 9]
        );
        assert_eq!(class(Resource::Memory, u64::MAX), 76);
    }
}
