//! How this node's life ends: as that of a member that stops for a while, or of one that leaves its cluster.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Disobeyed;

/// What was said first holds: a node that stops is not told to leave any more.
#[derive(Default)]
pub struct Ending(Mutex<How>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum How {
    #[default]
    Runs,
    Leaves,
    Stops,
}

impl Ending {
    /// The node is to leave: `stop` has it stop, and is called for the first who says so only.
    ///
    /// # Errors
    /// It stops for another reason already, or `stop` failed; then it is as if nobody had said so.
    pub fn leave(&self, stop: impl FnOnce() -> std::io::Result<()>) -> Result<(), Disobeyed> {
        let mut how = self.lock();
        match *how {
            How::Leaves => return Ok(()),
            How::Stops => return Err(Disobeyed::Refused("it has begun to stop".to_owned())),
            How::Runs => {}
        }
        stop().map_err(|error| Disobeyed::Unknown(error.to_string()))?;
        *how = How::Leaves;
        Ok(())
    }

    /// The node stops.
    pub fn stop(&self) {
        let mut how = self.lock();
        if *how == How::Runs {
            *how = How::Stops;
        }
    }

    /// Whether it leaves its cluster, or is about to.
    pub fn leaves(&self) -> bool {
        *self.lock() == How::Leaves
    }

    fn lock(&self) -> MutexGuard<'_, How> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_stopped_once_and_may_say_so_again() {
        let (ending, mut stopped) = (Ending::default(), 0);
        for _ in 0..3 {
            let stop = || {
                stopped += 1;
                Ok(())
            };
            assert_eq!(ending.leave(stop), Ok(()));
        }
        ending.stop();
        assert_eq!((stopped, ending.leaves()), (1, true));
    }

    #[test]
    fn who_stops_stays_a_member() {
        let ending = Ending::default();
        ending.stop();
        let refused = ending.leave(|| unreachable!("it stops already"));
        assert!(matches!(refused, Err(Disobeyed::Refused(_))) && !ending.leaves());
    }

    #[test]
    fn who_cannot_be_stopped_does_not_leave() {
        let ending = Ending::default();
        let failed = ending.leave(|| Err(std::io::ErrorKind::Unsupported.into()));
        assert!(matches!(failed, Err(Disobeyed::Unknown(_))) && !ending.leaves());
        assert_eq!(ending.leave(|| Ok(())), Ok(()));
    }
}
