//! Orders of another mode, which `kube-ipvs switch` gives over the console's socket.

use plan::mode::Mode;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Orders that may wait: who gives one more while a switch is under way is told to wait.
const MOST: usize = 1;

/// The program's end. An order that comes while no one waits is kept.
#[derive(Debug)]
pub(super) struct Orders {
    sender: Sender<Mode>,
    orders: Receiver<Mode>,
}

impl Orders {
    /// Returns the end that gives orders.
    pub(super) fn sender(&self) -> Sender<Mode> {
        self.sender.clone()
    }

    /// Ready with the next order.
    pub(super) async fn next(&mut self) -> Mode {
        match self.orders.recv().await {
            Some(mode) => mode,
            // There is a sender here, so that there is no end.
            None => std::future::pending().await,
        }
    }
}

impl Default for Orders {
    fn default() -> Self {
        let (sender, orders) = mpsc::channel(MOST);
        Self { sender, orders }
    }
}
