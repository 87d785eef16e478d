//! Reports on the Services so far: only what is different is reported again.

use crate::hash::HashMap;
use crate::model::ServiceName;
use crate::problem::Problem;

/// Problems of each Service as last reported.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// No empty lists.
    services: HashMap<ServiceName, Vec<Problem>>,
    /// Number of Services of which a part is not served.
    n_not_served: usize,
}

/// Differences from the last report.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Every Service whose problems are different, with all of them.
    pub(crate) problems: Vec<(ServiceName, Vec<Problem>)>,
    /// The problems that are new; no empty lists.
    pub(crate) new_problems: Vec<(ServiceName, Vec<Problem>)>,
}

impl Reports {
    /// Number of Services with problems.
    pub(crate) fn len(&self) -> usize {
        self.services.len()
    }

    /// Number of Services of which a part is not served.
    pub(crate) const fn n_not_served(&self) -> usize {
        self.n_not_served
    }

    /// The problems of a Service.
    pub(crate) fn of(&self, service: &ServiceName) -> &[Problem] {
        self.services.get(service).map_or(&[][..], Vec::as_slice)
    }

    /// Puts a Service's problems in the place of those that were reported before.
    pub(crate) fn replace(
        &mut self,
        service: ServiceName,
        problems: Vec<Problem>,
        news: &mut News,
    ) {
        let former = self.of(&service);
        if former == problems {
            return;
        }
        let is_served = |problems: &[Problem]| !problems.iter().any(Problem::leaves_out);
        match (is_served(former), is_served(&problems)) {
            (true, false) => self.n_not_served += 1,
            (false, true) => self.n_not_served -= 1,
            _ => {}
        }
        let former = self.of(&service);
        let new = problems.iter().filter(|problem| !former.contains(problem));
        let new: Vec<Problem> = new.cloned().collect();
        if !new.is_empty() {
            news.new_problems.push((service.clone(), new));
        }
        if problems.is_empty() {
            self.services.remove(&service);
        } else {
            self.services.insert(service.clone(), problems.clone());
        }
        news.problems.push((service, problems));
    }
}
