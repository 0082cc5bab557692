//! When a server counts as gone, and when nobody waits for it. One step without an answer makes it suspect: from then on
//! every further step fails at once, until a look for a sign of life says that it was bad luck, or that the server is gone.
//! So a request whose steps follow each other waits for one of them in vain, never for several. Knows no sockets and no
//! clock.

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// With an answer.
    Answered,
    /// Without one in time.
    Silent,
    /// It was a look for a sign of life, and there was none in time.
    Lifeless,
    /// The connection broke, or the server refuses to serve.
    Broken,
}

/// Whether the server is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Up,
    /// A step had no answer; a look will tell.
    Suspect,
    /// It is gone.
    Down,
}

impl Health {
    /// What a step says; one that was begun before the server went down changes nothing.
    pub fn on(self, step: Step) -> Health {
        match (self, step) {
            (Health::Down, _) | (_, Step::Broken) | (Health::Suspect, Step::Lifeless) => Health::Down,
            (Health::Up | Health::Suspect, Step::Answered) => Health::Up,
            (Health::Up, Step::Silent | Step::Lifeless) | (Health::Suspect, Step::Silent) => Health::Suspect,
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
    fn one_silence_makes_it_suspect_and_a_look_decides() {
        check(Health::Up, Step::Silent, Health::Suspect);
        check(Health::Up, Step::Lifeless, Health::Suspect);
        check(Health::Up, Step::Answered, Health::Up);
        check(Health::Suspect, Step::Answered, Health::Up);
        // Steps that were under way with the first one: bad luck for all of them, not more of it.
        check(Health::Suspect, Step::Silent, Health::Suspect);
        check(Health::Suspect, Step::Lifeless, Health::Down);
        for up in [Health::Up, Health::Suspect] {
            check(up, Step::Broken, Health::Down);
        }
        for step in [Step::Answered, Step::Silent, Step::Lifeless, Step::Broken] {
            check(Health::Down, step, Health::Down);
        }
    }
}
