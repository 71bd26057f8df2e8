//! Work that is better done once for many ends of requests than for each: a client gets its replies in one piece.

use std::cell::RefCell;

type Work = Box<dyn FnOnce()>;

thread_local! {
    /// What is to be done at the end, while this thread is in [`together`].
    static LATER: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
}

/// Runs `run`, in which any number of requests may end: what front ends do about them may wait until it returns, so that the replies to
/// one client leave together. A device that ends several requests at a time does so in here; one that does not loses speed only.
pub fn together<T>(run: impl FnOnce() -> T) -> T {
    let outermost = LATER.with_borrow_mut(|later| match later {
        Some(_) => false,
        None => {
            *later = Some(Vec::new());
            true
        }
    });
    let _end = outermost.then(|| End);
    run()
}

/// Does `work` when the [`together`] that this thread is in ends; outside of any, now.
pub(crate) fn at_the_end(work: impl FnOnce() + 'static) {
    let mut work: Option<Work> = Some(Box::new(work));
    LATER.with_borrow_mut(|later| {
        if let Some(later) = later {
            later.extend(work.take());
        }
    });
    if let Some(now) = work {
        now();
    }
}

/// The end of the outermost `together`, also by a panic: who waits for a reply still gets it.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let later = LATER.with_borrow_mut(Option::take).unwrap_or_default();
        later.into_iter().for_each(|work| work());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn counting() -> (Rc<Cell<u32>>, impl Fn()) {
        let count = Rc::new(Cell::new(0));
        let also = Rc::clone(&count);
        let note = move || {
            let count = Rc::clone(&also);
            at_the_end(move || count.set(count.get() + 1));
        };
        (count, note)
    }

    #[test]
    fn work_waits_for_the_outermost_end_and_no_longer() {
        let (count, note) = counting();
        note();
        assert_eq!(count.get(), 1, "outside there is nothing to wait for");
        together(|| {
            note();
            together(&note);
            assert_eq!(count.get(), 1);
        });
        assert_eq!(count.get(), 3);
        note();
        assert_eq!(count.get(), 4);
    }

    #[test]
    fn a_panic_loses_no_work() {
        let (count, note) = counting();
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            together(|| {
                note();
                panic!("a defect");
            })
        }));
        assert!(end.is_err());
        assert_eq!(count.get(), 1);
    }
}
