//! When a server counts as gone: one broken connection or a few steps without an answer. While it is gone nobody waits for
//! it; the upkeep looks for it and says when it is back. Knows no sockets and no clock.

/// Steps in a row without an answer, after which nobody waits any more. One alone may be bad luck.
const SILENT_STEPS: u32 = 3;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// With an answer.
    Answered,
    /// Without one in time.
    Silent,
    /// The connection broke, or the server refuses to serve.
    Broken,
}

/// Whether the server is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is; so many steps in a row had no answer.
    Up {
        /// Steps without an answer since the last one.
        silent: u32,
    },
    /// It is not.
    Down,
}

impl Health {
    /// What a step says; a step that was begun before the server went down changes nothing.
    pub fn on(self, step: Step) -> Health {
        match (self, step) {
            (Health::Down, _) | (_, Step::Broken) => Health::Down,
            (Health::Up { .. }, Step::Answered) => Health::Up { silent: 0 },
            (Health::Up { silent }, Step::Silent) if silent + 1 >= SILENT_STEPS => Health::Down,
            (Health::Up { silent }, Step::Silent) => Health::Up { silent: silent + 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: Health, step: Step, to: Health) {
        assert_eq!(from.on(step), to, "{from:?} on {step:?}");
    }

    #[test]
    fn three_silences_or_one_break_take_it_down() {
        let up = |silent| Health::Up { silent };
        check(up(0), Step::Silent, up(1));
        check(up(1), Step::Silent, up(2));
        check(up(2), Step::Silent, Health::Down);
        check(up(2), Step::Answered, up(0));
        check(up(0), Step::Broken, Health::Down);
        check(Health::Down, Step::Answered, Health::Down);
        check(Health::Down, Step::Silent, Health::Down);
        check(Health::Down, Step::Broken, Health::Down);
    }
}
