//! Reading ahead of faults: a window of pages that doubles while touches are sequential.
//!
//! Pages of a window that are mapped cause no fault, so the next fault of a sequential reader is at its end. Several readers are told apart by
//! where they go on.

use std::ops::Range;

/// Sequential readers at a time.
const STREAMS: usize = 16;
/// Pages of the first window.
const FIRST: u64 = 4;

#[derive(Debug)]
pub(super) struct Ahead {
    streams: Vec<Stream>,
    /// Most pages of a window.
    most: u64,
    /// The stream whose place is taken next.
    oldest: usize,
}

#[derive(Debug)]
struct Stream {
    /// The pages of the last window, and the touched one before it.
    seen: Range<u64>,
    window: u64,
}

impl Ahead {
    pub(super) fn new(most: u64) -> Ahead {
        Ahead { streams: Vec::new(), most, oldest: 0 }
    }

    /// A page was touched. The pages to open ahead, which follow it.
    pub(super) fn touched(&mut self, page: u64) -> Range<u64> {
        let nothing = page + 1..page + 1;
        if self.most == 0 {
            return nothing;
        }
        if let Some(stream) =
            self.streams.iter_mut().find(|it| it.seen.contains(&page) || it.seen.end == page)
        {
            // Under way already.
            if page < stream.seen.end {
                return nothing;
            }
            stream.window = if stream.window == 0 { FIRST } else { stream.window * 2 }.min(self.most);
            stream.seen = page..page + 1 + stream.window;
            return page + 1..stream.seen.end;
        }
        let stream = Stream { seen: page..page + 1, window: 0 };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else {
            self.streams[self.oldest] = stream;
            self.oldest = (self.oldest + 1) % STREAMS;
        }
        nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The windows of a reader that touches all pages from one on.
    fn windows(ahead: &mut Ahead, from: u64, faults: usize) -> Vec<u64> {
        let mut page = from;
        let window = |_| {
            let opened = ahead.touched(page);
            page = opened.end;
            opened.end - opened.start
        };
        (0..faults).map(window).collect()
    }

    #[test]
    fn a_window_grows_while_touches_are_sequential() {
        let mut ahead = Ahead::new(32);
        assert_eq!(windows(&mut ahead, 100, 7), [0, 4, 8, 16, 32, 32, 32]);
        // From another place it begins small again.
        assert_eq!(windows(&mut ahead, 5000, 3), [0, 4, 8]);
        assert_eq!(windows(&mut Ahead::new(0), 0, 3), [0, 0, 0]);
    }

    #[test]
    fn random_touches_open_nothing_and_do_not_end_the_streams_of_others() {
        let mut ahead = Ahead::new(32);
        let mut next = [0, 100_000];
        for round in 0..5 {
            for page in &mut next {
                *page = ahead.touched(*page).end;
            }
            assert!(ahead.touched(1_000_000 + 64 * round).is_empty());
        }
        assert_eq!(next, [65, 100_065]);
        // A touch inside of a window opens nothing again.
        assert!(ahead.touched(40).is_empty());
    }
}
