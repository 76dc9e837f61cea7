//! Places of a message's parts in the receiver's memory, which both ends compute from the lengths.
//!
//! Short parts come first, gathered into one region. Long parts follow, each copied from where it lies. Every part
//! begins at a multiple of [`ALIGNMENT`].

/// Alignment of every part in bytes.
pub const ALIGNMENT: u64 = 64;
/// Most bytes of a message that travel with its head.
pub const INLINE_BYTES: u64 = 16 << 10;
/// From this length on a part is copied from where it lies.
const DIRECT_BYTES: u64 = 32 << 10;
/// Most bytes of a message that are copied in one piece, so that lanes take turns.
const FRAME_BYTES: u64 = 8 << 20;

/// The places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Offset and length of each part.
    places: Vec<(u64, u64)>,
    /// Bytes of the gathered region.
    gathered: u64,
    /// Bytes of all parts.
    bytes: u64,
    /// Bytes of memory for all parts.
    size: u64,
}

/// Memory that is sent as one run of bytes: the gathered region, or a long part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The long part; `None` for the gathered region.
    pub part: Option<u32>,
    /// Offset in the receiver's memory.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The segment.
    pub segment: Segment,
    /// Offset in the segment.
    pub within: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Layout {
    /// The places of parts of these lengths; `None` if they have more than `limit` bytes together, or if this
    /// process cannot address them.
    pub fn of(lengths: impl Iterator<Item = u64> + Clone, limit: u64) -> Option<Self> {
        let mut bytes = 0u64;
        let (mut gathered, mut direct) = (0u64, 0u64);
        for length in lengths.clone() {
            bytes = bytes.checked_add(length).filter(|bytes| *bytes <= limit)?;
            let region = if length < DIRECT_BYTES {
                &mut gathered
            } else {
                &mut direct
            };
            *region = region.checked_add(length.checked_next_multiple_of(ALIGNMENT)?)?;
        }
        let size = gathered.checked_add(direct)?;
        isize::try_from(size).ok()?;
        let (mut short, mut long) = (0, gathered);
        let places = lengths.map(|length| {
            let next = if length < DIRECT_BYTES { &mut short } else { &mut long };
            let offset = *next;
            *next += length.next_multiple_of(ALIGNMENT);
            (offset, length)
        });
        Some(Self {
            places: places.collect(),
            gathered,
            bytes,
            size,
        })
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory for all parts.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Bytes of the region of short parts.
    pub fn gathered(&self) -> usize {
        self.gathered as usize
    }

    /// Offset and length of each part.
    pub fn offsets(&self) -> &[(u64, u64)] {
        &self.places
    }

    /// Whether the bytes travel with the head.
    pub fn is_inline(&self) -> bool {
        self.bytes <= INLINE_BYTES
    }

    /// Whether a part of this length is gathered with others.
    pub fn is_gathered(length: u64) -> bool {
        length < DIRECT_BYTES
    }

    /// What is sent after the head, in order.
    pub fn frames(&self) -> Frames {
        let gathered = Segment {
            part: None,
            offset: 0,
            length: self.gathered,
        };
        let direct = (0..).zip(&self.places).filter(|(_, place)| place.1 >= DIRECT_BYTES);
        let direct = direct.map(|(part, place)| Segment {
            part: Some(part),
            offset: place.0,
            length: place.1,
        });
        let segments = std::iter::once(gathered).filter(|segment| segment.length > 0);
        Frames {
            segments: segments.chain(direct).collect(),
            at: 0,
            within: 0,
        }
    }
}

/// The frames of a message.
#[derive(Debug)]
pub struct Frames {
    segments: Vec<Segment>,
    at: usize,
    within: u64,
}

impl Frames {
    /// Whether none is left.
    pub fn is_over(&self) -> bool {
        self.at == self.segments.len()
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let segment = *self.segments.get(self.at)?;
        let length = (segment.length - self.within).min(FRAME_BYTES);
        let frame = Frame {
            segment,
            within: self.within,
            length,
        };
        self.within += length;
        if self.within == segment.length {
            (self.at, self.within) = (self.at + 1, 0);
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn message_beyond_four_gigabytes_has_frames() {
        let length = (1u64 << 32) + 5;
        let layout = Layout::of([3, length, 0].into_iter(), 1 << 40).unwrap();
        let frames: Vec<Frame> = layout.frames().collect();
        assert_eq!(frames.iter().map(|frame| frame.length).sum::<u64>(), length + 64);
        assert!(frames.iter().all(|frame| frame.length <= FRAME_BYTES));
        assert_eq!(frames.last().unwrap().segment.offset, 64);
    }

    proptest! {
        #[test]
        fn parts_are_aligned_and_apart(lengths in proptest::collection::vec(0u64..200_000, 0..40)) {
            let layout = Layout::of(lengths.iter().copied(), u64::MAX).unwrap();
            prop_assert_eq!(layout.bytes(), lengths.iter().sum::<u64>());
            let mut places = layout.offsets().to_vec();
            prop_assert!(places.iter().all(|(offset, _)| offset.is_multiple_of(ALIGNMENT)));
            places.sort_unstable();
            for pair in places.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
            let last = places.last().map_or(0, |(offset, length)| offset + length);
            prop_assert!(last <= layout.size() as u64);
        }

        #[test]
        fn frames_cover_each_segment_once(lengths in proptest::collection::vec(0u64..40_000_000, 0..12)) {
            let layout = Layout::of(lengths.iter().copied(), u64::MAX).unwrap();
            let mut next = 0;
            for frame in layout.frames() {
                let start = frame.segment.offset + frame.within;
                prop_assert!(start >= next && frame.length > 0 && start + frame.length <= layout.size() as u64);
                next = start + frame.length;
            }
            let direct: u64 = lengths.iter().filter(|length| !Layout::is_gathered(**length)).sum();
            let total: u64 = layout.frames().map(|frame| frame.length).sum();
            prop_assert_eq!(total, direct + layout.gathered() as u64);
            let mut frames = layout.frames();
            for _ in 0..layout.frames().count() {
                prop_assert!(!frames.is_over() && frames.next().is_some());
            }
            prop_assert!(frames.is_over());
        }
    }
}
